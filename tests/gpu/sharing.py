#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three engines on one GPU that share KV memory: the same tokens as with enough memory of one's own, whatever happens to
the leases; and what a lease costs and saves there. Needs Python alone: a machine with a GPU may have nothing else.

  tests/gpu/sharing.py --bin build/cuda/bin [--transport cuda_ipc|nccl] [--dtype bf16] [--model FOLDER] [--json PATH]
  tests/gpu/sharing.py --bin build/release/bin --backend cpu --transport shm          the same script where there is no GPU

In f32 attention is that of the plain kernel; with --dtype bf16 tensor cores compute it. A GPU's sums depend on what else is
in a step, so tokens are compared up to the first whose two best logits are closer than what that may change (as the golden
tests do), and prompts are drawn until they have at least four such tokens.

Exit code 1: a token was wrong, or something that had to happen did not. Figures that miss what was asked are said and no
failure."""
import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_MS, VOCABULARY = 50, (30, 700)
MARGIN = {"f32": 1e-3, "bf16": 0.5}
LEAST_COMPARED = 4  # tokens


class Server:
    def __init__(self, argv, log):
        self.name = str(argv[0]).rsplit("-", 1)[-1]
        self.child = subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=open(log, "w"), text=True)
        found = re.search(r"listening grpc=(\S+) http=(\S+)", self.child.stdout.readline())
        if not found:
            raise SystemExit(f"{argv[0]} did not start: {pathlib.Path(log).read_text()[-2000:]}")
        self.grpc, self.http = found.groups()

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=60) as reply:
            return reply.read().decode()

    def metric(self, name, label=""):
        lines = [line for line in self.get("/metrics").splitlines() if re.split(r"[{ ]", line)[0] == name and label in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


class Refused(RuntimeError):
    pass


class Answer:
    """Tokens, how far the two best logits of each were apart, seconds to the first and between them."""

    def __init__(self):
        self.tokens, self.margins, self.ttft, self.pace = [], [], 0, 0

    def add(self, logprobs):
        self.tokens += logprobs.get("tokens", [])
        for top in logprobs.get("top_logprobs", []):
            best = sorted(top.values(), reverse=True)
            self.margins.append(best[0] - best[1] if len(best) > 1 else 0)  # two tokens of one text: nobody knows

    def certain(self, margin):
        """The first tokens, up to one that is not."""
        return self.tokens[:next((i for i, found in enumerate(self.margins) if found < margin), len(self.tokens))]


class Cluster:
    def __init__(self, args, folder):
        self.args, self.folder, self.servers = args, folder, []
        self.logs = pathlib.Path(args.logs or folder)
        self.logs.mkdir(parents=True, exist_ok=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever cuts this off leaves no engine on the GPU
        self.broker = self.start("broker", "--scale_down_window=1s")
        self.gateway = self.start("gateway", f"--broker={self.broker.grpc}")

    def start(self, binary, *flags):
        argv = [pathlib.Path(self.args.bin) / f"swiftcache-{binary}", "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0", *flags]
        self.servers.append(Server(argv, self.logs / f"{len(self.servers)}-{binary}.log"))
        return self.servers[-1]

    def engine(self, name, kib, *flags, model=None):
        """`kib`: of KV in f32, for as many tokens."""
        memory, dtype = kib if self.args.dtype == "f32" else kib // 2, self.args.dtype
        engine = self.start("engine", f"--model={model or self.args.model}", f"--model_name={name}", f"--broker={self.broker.grpc}",
                            f"--shm_dir={self.folder / 'shm'}", f"--backend={self.args.backend}", f"--kv_cache_bytes={memory}KiB",
                            f"--dtype={dtype}", f"--kv_cache_dtype={dtype}", f"--revoke_deadline={DEADLINE_MS}ms", *flags)
        wait(lambda: f'"{name}"' in self.models(), f"{name} is served")
        return engine

    def models(self):
        try:
            return self.gateway.get("/v1/models")
        except urllib.error.HTTPError as error:  # 503: it has not heard of the broker yet
            return error.read().decode()

    def ask(self, model, prompt, tokens):
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True,
                "logprobs": 2}
        request = urllib.request.Request(f"http://{self.gateway.http}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        begun, times, answer = time.monotonic(), [], Answer()
        try:
            reply = urllib.request.urlopen(request, timeout=120)
        except urllib.error.HTTPError as error:
            raise Refused(error.read().decode()) from None
        with reply:
            for line in reply:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(event["error"])
                    if event.get("choices"):
                        times.append(time.monotonic())
                        answer.add(event["choices"][0].get("logprobs") or {})
        answer.ttft, answer.pace = times[0] - begun, (times[-1] - times[0]) / max(1, len(times) - 1)
        return answer

    def retire(self, server):
        """It ends, and leaves its part of the GPU to the others."""
        server.child.terminate()
        server.child.wait(30)

    def save_metrics(self):
        for number, server in enumerate(self.servers):
            try:
                (self.logs / f"{number}-{server.name}.metrics").write_text(server.get("/metrics"))
            except OSError:
                pass  # it has ended

    def stop(self):
        if self.args.logs:
            self.save_metrics()
        for server in reversed(self.servers):
            server.child.terminate()
        deadline = time.monotonic() + 10
        for server in self.servers:
            try:
                server.child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                server.child.kill()


def wait(condition, what, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s: {what}")
        time.sleep(0.02)


class Figures:
    """What was measured, and how much of it was wrong or did not happen."""

    def __init__(self):
        self.rows, self.wrong = [], 0

    def row(self, what, figure, asked=""):
        self.rows.append({"what": what, "figure": figure, "asked": asked})
        print(f"{what:84} {figure:>14}  {asked}", flush=True)

    def save(self, args, models):
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps({"models": models, "transport": args.transport, "backend": args.backend,
                                                           "dtype": args.dtype, "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ, "wrong": self.wrong, "rows": self.rows}, indent=1))


def reclaims(donors):
    """Needs of theirs that were answered, how many of them after more than 100 ms, and the mean time, in ms."""
    count, seconds, early = (sum(donor.metric(f"swiftcache_reclaim_seconds_{what}", label) for donor in donors)
                             for what, label in (("count", ""), ("sum", ""), ("bucket", 'le="0.1"')))
    return count, count - early, seconds / max(1, count) * 1e3


class Run(Figures):
    def __init__(self, args, cluster):
        super().__init__()
        self.cluster, self.refused = cluster, []
        rng = random.Random(args.seed)
        self.fresh = lambda n: [rng.randrange(*VOCABULARY) for _ in range(n)]
        alone = cluster.engine("alone", 64 << 10, "--transport=none")
        self.prompts, self.wanted, self.computed = [], [], []
        for n in (60, 200, 700, 1100, 1500, 1900):
            self.draw(n, MARGIN[args.dtype])
        cluster.retire(alone)
        self.row("tokens of each answer that are compared", " ".join(str(len(wanted)) for wanted in self.wanted), f"{LEAST_COMPARED} or more")
        share = f"--transport={args.transport}"
        kib = 40 << 10 if args.dtype == "f32" else 80 << 10  # 40 MiB: what is lent is lent by pages of 2 MiB, 1/16 at most
        self.donors = [cluster.engine(f"donor{i}", kib, share) for i in range(2)]  # 20,480 tokens, or twice as many
        self.asks = 24 if args.dtype == "f32" else 48  # of 2,000 tokens: more than donors have beside what they lend
        # 512 tokens of its own, or where all that is leased is streamed, half of it through slots, 1,536.
        own = 512 if args.transport != "nccl" else 1536
        self.chat, self.own = cluster.engine("chat", 2 * own, share), own

    def draw(self, length, margin):
        """A prompt with enough tokens to compare, and its time when it is computed."""
        for _ in range(1000):
            prompt = self.fresh(length)
            answer = self.cluster.ask("alone", prompt, 24)
            if len(answer.certain(margin)) >= LEAST_COMPARED:
                break
        else:
            raise SystemExit(f"of 1000 prompts of {length} tokens none has {LEAST_COMPARED} certain tokens")
        self.prompts.append(prompt)
        self.wanted.append(answer.certain(margin))
        self.computed.append(answer.ttft)

    def compare(self, what, prompts=None, may_refuse=False):
        """Asks all prompts; the times to the first token. `may_refuse`: where nobody has memory to lend, a prompt that own
        memory does not hold may be refused."""
        times = []
        for i in prompts if prompts is not None else range(len(self.prompts)):
            try:
                answer = self.cluster.ask("chat", self.prompts[i], 24)
            except Refused as refused:
                if not may_refuse:
                    raise
                self.refused.append(str(refused))
                continue
            times.append(answer.ttft)
            if self.cluster.args.trace:
                print(f"{what}: {len(self.prompts[i])} tokens, the first after {answer.ttft * 1e3:.0f} ms, {answer.pace * 1e3:.0f} ms each", flush=True)
            if answer.tokens[:len(self.wanted[i])] != self.wanted[i]:
                self.wrong += 1
                print(f"WRONG  {what}: the prompt of {len(self.prompts[i])} tokens gave other tokens than alone")
        return times

    @contextlib.contextmanager
    def talking(self, what, prompts, may_refuse=False):
        """Meanwhile `chat` is asked these prompts again and again."""
        ending = threading.Event()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            talker = pool.submit(lambda: sum(len(self.compare(what, prompts, may_refuse)) for _ in iter(ending.is_set, True)))
            try:
                yield
            finally:
                ending.set()
            compared = talker.result()
        if compared == 0:
            self.wrong += 1
            print(f"WRONG  {what}: no answer was compared")

    def leased(self):
        return self.chat.metric("swiftcache_kv_blocks", 'state="leased_in"')

    def found(self):
        return self.chat.metric("swiftcache_prompt_tokens_by_source_total", 'source="donor"')

    def tokens(self):
        self.compare("the first time")
        wait(lambda: self.leased() > 0, "chat leases memory")
        for _ in range(5):  # what was cached first may have been evicted before anybody lent
            self.compare("with what is cached, own and leased")
            if self.found():
                break
        again = [self.compare("again", [-1])[0] for _ in range(5)]
        longest = len(self.prompts[-1])
        self.row("longest prompt over the engine's own memory", f"{longest / self.own:.1f}")
        self.row(f"TTFT of {longest} tokens again, with leases, median of five", f"{statistics.median(again) * 1e3:.1f} ms")
        self.row(f"TTFT of {longest} tokens, computed, with enough own memory", f"{self.computed[-1] * 1e3:.1f} ms")

    def reclaim(self):
        """Donors need their memory while chat goes on: 24 prompts, or twice as many, of 1,900 tokens, and long enough at it to be
        there together."""
        with self.talking("while donors take their memory back", [2, 4], may_refuse=True):
            for _ in range(20):
                with concurrent.futures.ThreadPoolExecutor(self.asks) as pool:
                    list(pool.map(lambda i: self.cluster.ask(f"donor{i % 2}", self.fresh(1900), 120), range(self.asks)))
                if reclaims(self.donors)[0] >= 3:
                    break
        count, late, mean_ms = reclaims(self.donors)
        self.wrong += count == 0
        self.row("prompts that were refused meanwhile, for want of memory", f"{len(self.refused)}")
        self.row("leases that were taken back under load", f"{count:.0f}", "more than 0")
        self.row("from their revocation to their end, mean", f"{mean_ms:.1f} ms", f"the deadline is {DEADLINE_MS} ms")
        self.row("of them after more than 100 ms", f"{late:.0f}", "0")

    def interference(self):
        """A donor's time a token while its borrower reads and writes, and while it does not; in turns."""
        beside, alone = [], []
        prompt = self.fresh(400)
        for _ in range(6):
            alone.append(self.cluster.ask("donor0", prompt, 100).pace)
            with self.talking("beside a donor that decodes", [4]):
                beside.append(self.cluster.ask("donor0", prompt, 100).pace)
        self.row("a donor's time a token, its borrower at work, over that alone",
                 f"{statistics.median(beside) / statistics.median(alone):.3f}", "on one GPU they also share what computes")

    def death(self):
        """A donor is killed in the midst of answers."""
        wait(lambda: self.leased() > 0 or self.compare("before a donor's death") is None, "chat leases again")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(self.compare, "while a donor is killed", [i]) for i in (4, 5)]
            self.donors[1].child.kill()
            for one in asked:
                one.result()
        self.compare("after a donor's death")
        self.row("answers were right while a donor was killed", "yes" if self.wrong == 0 else "no", "yes")
        found = self.found()
        self.row("prompt tokens that were found in leased memory", f"{found:.0f}", "more than 0")
        self.wrong += found == 0


def arguments():
    """What large_sharing.py takes, too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--transport", default="cuda_ipc")
    parser.add_argument("--json")
    parser.add_argument("--logs", help="folder for the servers' logs and last metrics, which go else")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main():
    parser = arguments()
    parser.add_argument("--dtype", default="f32", choices=MARGIN)
    parser.add_argument("--model", default=ROOT / "tests/data/tiny/tiny-llama-a")
    parser.add_argument("--trace", action="store_true", help="a line for each answer")
    args = parser.parse_args()
    if args.transport == "nccl":
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    with tempfile.TemporaryDirectory(prefix="sc") as folder:
        cluster = Cluster(args, pathlib.Path(folder))
        try:
            run = Run(args, cluster)
            run.tokens()
            run.reclaim()
            run.interference()
            run.death()
        finally:
            cluster.stop()
    print("wrong:", run.wrong)
    run.save(args, pathlib.Path(args.model).name)
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
