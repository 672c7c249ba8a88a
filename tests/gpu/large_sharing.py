#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Leases at the size of a GPU: a model of Qwen3-8B's shape with little KV memory of its own, beside two workers of
Qwen3-0.6B's shape that have much, all with random weights and on one GPU: the longest prompt, the time to the first token of a
prompt that is cached in leases beside that of one that is computed, and a need of a donor for more than 1 GiB of what it lends
while all compute. Tokens of random weights say nothing: sharing.py compares tokens. Wants 18 GB of disk for the weights.

  tests/gpu/large_sharing.py --bin build/cuda/bin [--transport cuda_ipc] [--json PATH]
  tests/gpu/large_sharing.py --bin build/release/bin --backend cpu --transport shm --small    tries the script without a GPU

Exit code 1: something that had to happen did not. Figures that miss what was asked are said and no failure."""
import concurrent.futures
import contextlib
import pathlib
import random
import statistics
import sys
import tempfile
import threading

import random_model
from sharing import DEADLINE_MS, Cluster, Figures, Refused, arguments, reclaims, wait

OWN = 3072  # tokens, of the large model
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8, "num_key_value_heads": 8,
         "head_dim": 128, "vocab_size": 704}


class Run(Figures):
    def __init__(self, args, cluster, folder):
        super().__init__()
        self.cluster = cluster
        rng = random.Random(args.seed)
        self.fresh = lambda n: [rng.randrange(30, 700) for _ in range(n)]
        shapes = {"large": {**random_model.QWEN3_8B, **(SMALL if args.small else {})},
                  "worker": {**random_model.WORKER, **(SMALL if args.small else {})}}
        for name, shape in shapes.items():
            random_model.write(folder / name, shape)
        self.kv = {name: random_model.kv_bytes(shape) for name, shape in shapes.items()}
        share = f"--transport={args.transport}"
        lent = 4 * OWN * self.kv["large"]  # bytes that each worker has for the large model's prompts
        self.worker_tokens = lent // self.kv["worker"]
        self.donors = [cluster.engine(f"donor{i}", lent >> 9, share, model=folder / "worker") for i in range(2)]
        self.chat = cluster.engine("chat", (OWN * self.kv["large"]) >> 9, share, model=folder / "large")

    def expect(self, holds, what):
        if not holds:
            self.wrong += 1
            print("FAILED ", what, flush=True)

    def lent_bytes(self, donor):
        return donor.metric("swiftcache_kv_blocks", 'state="leased_out"') * 16 * self.kv["worker"]

    def longest(self):
        self.cluster.ask("chat", self.fresh(256), 2)
        wait(lambda: self.chat.metric("swiftcache_kv_blocks", 'state="leased_in"') > 0 or self.cluster.ask("chat", self.fresh(OWN - 64), 2) is None,
             "chat leases memory")
        answer = self.cluster.ask("chat", self.fresh(7 * OWN), 8)
        self.row(f"prompt of {7 * OWN} tokens over {OWN} of own memory: TTFT", f"{answer.ttft:.2f} s", "it is served")

    def first_token(self):
        length = 2 * OWN
        both, cached = [self.fresh(length), self.fresh(length)], []  # each time one of them has pushed the other out of own memory
        for _ in range(4):
            cached += [self.cluster.ask("chat", prompt, 4).ttft for prompt in both]
        computed = [self.cluster.ask("chat", self.fresh(length), 4).ttft for _ in range(3)]
        found = self.chat.metric("swiftcache_prompt_tokens_by_source_total", 'source="donor"')
        self.expect(found > length, f"only {found:.0f} prompt tokens were found in leases")
        again, anew = statistics.median(cached[2:]), statistics.median(computed)
        self.row(f"TTFT of {length} tokens, cached in own memory and leases, median", f"{again * 1e3:.0f} ms")
        self.row("of as many that are computed", f"{anew * 1e3:.0f} ms")
        self.row("ratio", f"{again / anew:.3f}", "several times sooner")

    def reclaim(self):
        """A donor needs more than is left to it, while the large model computes."""
        stop = threading.Event()

        def talk():
            """How many prompts were answered."""
            answered = 0
            while not stop.is_set():
                with contextlib.suppress(Refused):  # while nobody has memory to lend
                    self.cluster.ask("chat", self.fresh(2 * OWN), 4)
                    answered += 1
            return answered

        donor = self.donors[0]
        sequences = 16
        length = self.worker_tokens // sequences - 64  # all of the donor's memory
        with concurrent.futures.ThreadPoolExecutor(sequences + 1) as pool:
            talker = pool.submit(talk)
            try:
                before = self.lent_bytes(donor)
                list(pool.map(lambda _: self.cluster.ask("donor0", self.fresh(length), 32), range(sequences)))
                after = self.lent_bytes(donor)
            finally:
                stop.set()
            answered = talker.result()
        self.expect(answered > 0, "the large model answered nothing meanwhile")
        count, late, mean_ms = reclaims([donor])
        self.expect(count > 0 and before > 0, f"nothing was taken back: {before / 2**30:.2f} GiB were lent")
        self.row("lent by a donor before it needs its memory, and after", f"{before / 2**30:.2f}, {after / 2**30:.2f} GiB", "1 GiB or more goes back")
        self.row("its needs, and how long each waited in the mean", f"{count:.0f}, {mean_ms:.1f} ms", f"the deadline is {DEADLINE_MS} ms")
        self.row("of them after more than 100 ms", f"{late:.0f}", "0")


def main():
    parser = arguments()
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    args.dtype, args.model = "bf16", None
    with tempfile.TemporaryDirectory(prefix="sc") as folder:
        cluster = Cluster(args, pathlib.Path(folder))
        try:
            run = Run(args, cluster, pathlib.Path(folder))
            run.longest()
            run.first_token()
            run.reclaim()
        finally:
            cluster.stop()
    run.save(args, "Qwen3-8B's and Qwen3-0.6B's shapes")
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
