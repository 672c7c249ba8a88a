#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What leases are worth, and what they cost: real processes, a real model, each figure beside its bound or its peer.

  tests/bench/leases.py ttft                 turns 2 and later, with leases, without, and with all memory local
  tests/bench/leases.py ttft_open            the same under Poisson arrivals
  tests/bench/leases.py reclaim              a donor needs 64 MiB back: borrower idle, and mid-step
  tests/bench/leases.py lend                 a loan of 1 GiB: what its donor feels of it, and of the scrub
  tests/bench/leases.py longest              a prompt many times longer than the engine's own memory
  tests/bench/leases.py stall                what layer streaming does not hide, at several link speeds
  tests/bench/leases.py unused               what sharing costs an engine that nobody lends to (needs valgrind)
  tests/bench/leases.py interference         a donor's TTFT and TPOT while its borrower reads and writes

Needs the binaries (--bin) and the model of deploy/fetch-model.sh (--model); run it with the Python of tests/run.sh
(~/.cache/swiftcache/test-venv/bin/python) on a machine that does nothing else. Sides of a comparison are interleaved:
ratios hold on a noisy machine, absolute times do not. Ends with 1 if a figure misses what was asked of it.
"""
import concurrent.futures
import os
import pathlib
import re
import statistics
import sys
import threading
import time

import grpc
from sides import TOKEN_BYTES, Asker, Bench, arguments, cpu_name, interval, percentile, ratio_interval

from conftest import ROOT, SMOLLM2, Cluster, Process  # of tests/e2e, which sides put on the path


class Conversations:
    """Endless talks, `active` at a time, one of which takes its next turn; the same for every side."""

    FIRST, TURN, ANSWER, TURNS = 512, 48, 16, 9

    def __init__(self, bench, active):
        self.bench = bench
        self.active = [self._fresh() for _ in range(active)]

    def _fresh(self):
        return {"prompt": self.bench.tokens(self.FIRST), "turn": 1}

    def next(self):
        slot = self.bench.rng.randrange(len(self.active))
        return slot, self.active[slot]

    def answered(self, slot, ids):
        talk = self.active[slot]
        if talk["turn"] == self.TURNS:
            self.active[slot] = self._fresh()
        else:
            talk["prompt"] = talk["prompt"] + ids + self.bench.tokens(self.TURN)
            talk["turn"] += 1


def ttft_sides(bench):
    """Equal own memory with leases and without; the bound has as much as all of them, for itself."""
    own, donors = 2048, (4 * 2048, 4 * 2048)
    return [bench.side("without", own, chat_flags=("--transport=none",)),
            bench.side("in_place", own, donors, ("--stream=in_place",)),
            bench.side("lsc_200gbps", own, donors, ("--stream=lsc", "--link_gbps=200")),
            bench.side("all_local", own + sum(donors), chat_flags=("--transport=none",))]


def print_ttft(bench, title, samples, sides):
    print(f"\n{title}: TTFT of turns 2 and later, ms")
    print(f"{'side':14}{'samples':>8}{'p50':>9}{'p90':>9}{'p99':>9}{'p99 / without':>15}{'p99 / all local':>17}{'p50 / all local':>17}")
    p99 = {side.name: percentile(samples[side.name], 99) for side in sides}
    p50 = {side.name: percentile(samples[side.name], 50) for side in sides}
    for side in sides:
        values = samples[side.name]
        print(f"{side.name:14}{len(values):8}{p50[side.name] * 1e3:9.1f}{percentile(values, 90) * 1e3:9.1f}"
              f"{p99[side.name] * 1e3:9.1f}{p99[side.name] / p99['without']:15.3f}{p99[side.name] / p99['all_local']:17.3f}"
              f"{p50[side.name] / p50['all_local']:17.3f}")
    for side in ("in_place", "lsc_200gbps"):
        bench.asked(f"p99 of {side} / p99 without leases", p99[side] / p99["without"], 0.31)
        bench.asked(f"p99 of {side} / p99 with all memory local", p99[side] / p99["all_local"], 1.15)
        low, high = ratio_interval(samples[side], samples["all_local"], 99, bench.rng)
        print(f"        95 % interval {low:.3f} to {high:.3f}: of so many samples few decide it")


def print_slowest(answers, count=5):
    """The slowest first tokens of each side beside the same request's on the others: [request] -> {side: Answer}."""
    print("\nslowest first tokens, ms, and the same request on each side (tokens computed, found in leases)")
    for name in answers[0]:
        for request in sorted(answers, key=lambda r: -r[name].ttft)[:count]:
            print(f"  {name:12}" + ", ".join(f"{side} {a.ttft * 1e3:.0f} ({a.computed}, {a.usage.cached_tokens.donor})"
                                             for side, a in request.items()))


def print_sources(side):
    m = side.chat.metrics()
    parts = {k: v for k, v in m.items() if "prefix_cache" in k or "prompt_tokens" in k or "lease_borrowed" in k or "lease_lost" in k}
    print(f"  {side.name}: " + ", ".join(f"{k} {v:.0f}" for k, v in sorted(parts.items())))


def ttft(bench):
    sides = ttft_sides(bench)
    talks = Conversations(bench, active=8)  # of 768 tokens on average: three times the arena
    samples = {s.name: [] for s in sides}
    wrong, counted = 0, 0
    warm_up = 24
    while counted < warm_up + bench.args.samples:
        slot, talk = talks.next()
        answers = {}
        for side in bench.rng.sample(sides, len(sides)):
            answers[side.name] = side.ask(talk["prompt"], talks.ANSWER)
        ids = answers["all_local"].ids
        wrong += sum(a.ids != ids for a in answers.values())
        if talk["turn"] > 1:
            counted += 1
            if counted > warm_up:
                for name, answer in answers.items():
                    samples[name].append(answer.ttft)
        talks.answered(slot, ids)
    print_ttft(bench, "Closed loop, one client", samples, sides)
    bench.asked("answers that differ between the sides", wrong, 0)
    for side in sides:
        print_sources(side)


def ttft_open(bench):
    """Poisson arrivals; a side has the machine for a window, then the next side has the same arrivals."""
    sides = ttft_sides(bench)
    talks = Conversations(bench, active=8)
    service = []
    for _ in range(48):  # warm-up, and what the side without leases can serve
        slot, talk = talks.next()
        answers = [side.ask(talk["prompt"], talks.ANSWER) for side in sides]
        service.append(answers[0].seconds)
        talks.answered(slot, answers[-1].ids)
    rate = 0.6 / statistics.mean(service[16:])
    requests = []  # of turns 2 and later: {side: Answer}
    pool = concurrent.futures.ThreadPoolExecutor(64)
    while len(requests) < bench.args.samples:
        plan, at, slots = [], 0.0, set()
        while len(slots) < len(talks.active):  # every conversation at most once in a window
            at += bench.rng.expovariate(rate)
            slot = bench.rng.choice([s for s in range(len(talks.active)) if s not in slots])
            slots.add(slot)
            plan.append((at, slot, talks.active[slot]["prompt"], talks.active[slot]["turn"]))
        window = {slot: {} for slot in slots}
        for side in bench.rng.sample(sides, len(sides)):
            begun, futures = time.monotonic(), []
            for at, slot, prompt, turn in plan:
                time.sleep(max(0.0, begun + at - time.monotonic()))
                futures.append((slot, turn, pool.submit(side.ask, prompt, talks.ANSWER)))
            done = [(slot, turn, future.result()) for slot, turn, future in futures]
            for slot, turn, answer in done:
                window[slot] |= {side.name: answer} if turn > 1 else {}
            if side.name == "all_local":
                answered = [(slot, answer.ids) for slot, _, answer in done]
        for slot, ids in answered:
            talks.answered(slot, ids)
        requests += [request for request in window.values() if request]
    print_slowest(requests)
    samples = {side.name: [request[side.name].ttft for request in requests] for side in sides}
    print_ttft(bench, f"Poisson arrivals in windows of eight, {rate:.2f}/s (60 % of what the side without leases can serve)", samples, sides)


def longest(bench):
    own, prompt = 1024, bench.tokens(8000)
    sides = [bench.side(name, own, (4608, 4608), (f"--stream={name}",)) for name in ("in_place", "lsc")]
    full = bench.side("all_local", 9000, chat_flags=("--transport=none",))
    alone = bench.side("alone", own, chat_flags=("--transport=none",))
    try:
        alone.ask(prompt, 1)
        refusal = "served"
    except grpc.RpcError as error:
        refusal = f"{error.code().name}: {error.details()}"
    print(f"alone, {own} tokens of memory: {refusal}")
    bench.asked(f"alone it is refused as OUT_OF_RANGE, and told of {own}",
                refusal.startswith("OUT_OF_RANGE") and re.search(rf"\b{own}\b", refusal) is not None, True)
    answers = {}
    for _ in range(bench.args.rounds):
        for side in (*sides, full):
            answers.setdefault(side.name, []).append(side.ask(prompt, 48))
        prompt = bench.tokens(8000)
    print(f"\nprompt of 8000 tokens, own memory of {own}: ratio {8000 / own:.2f}")
    print(f"{'side':12}{'TTFT s':>9}{'tokens/s':>10}{'/ bound':>9}{'same tokens':>13}")
    bound = statistics.median(a.tpot for a in answers["all_local"])
    for name, those in answers.items():
        same = all(a.ids == b.ids for a, b in zip(those, answers["all_local"]))
        tpot = statistics.median(a.tpot for a in those)
        print(f"{name:12}{statistics.median(a.ttft for a in those):9.2f}{1 / tpot:10.1f}{bound / tpot:9.3f}{str(same):>13}")
        if name != "all_local":
            bench.asked(f"{name}: the tokens are those of enough memory", same, True)
    bench.asked("prompt / own memory", 8000 / own, 7, least=True)


def reclaim(bench):
    """A donor's prompt needs 64 MiB and more of what it has lent: from the need to memory that its next plan can use, as
    its log tells (without the scrub, which the loop does before it uses a block). The borrower is idle, while the donor
    does nothing else or decodes for another client, or in the middle of a step; the latter two at most 20 times."""
    block = 16 * 2 * TOKEN_BYTES  # in f32
    own, prompt_blocks = 170, 162  # of the donor
    f32 = ("--kv_cache_dtype=f32",)
    side = bench.side("reclaim", 2 * 600, (2 * 16 * own,), ("--stream=in_place", *f32),
                      ("--max_num_batched_tokens=2600", *f32), window="100ms")  # soon it lends again
    donor, name = side.donors[0], "donor0"

    def lent():
        return int(donor.metric("swiftcache_kv_blocks", state="leased_out"))

    for busy, decodes in ((False, False), (False, True), (True, False)):
        rounds = min(20, bench.args.rounds) if busy or decodes else bench.args.rounds
        times, needed, ttft = [], [], []
        for _ in range(3 * rounds):
            if len(times) == rounds:
                break
            prompt = bench.tokens(2250)  # of which its own memory holds 600
            side.ask(prompt, 1)
            time.sleep(0.3)  # until the last of it is stored
            blocks, seen, beside = lent(), len(donor.text()), None
            if busy:
                beside = threading.Thread(target=side.ask, args=(prompt + bench.tokens(64), 1))
            elif decodes:
                beside = threading.Thread(target=side.ask, args=(bench.tokens(16), 100, name))
            if beside:
                beside.start()
                time.sleep(0.2 if decodes else bench.rng.uniform(0.05, 0.3))
            answer = side.ask(bench.tokens(16 * prompt_blocks - 1), 1, name)
            if beside:
                beside.join()
            back = re.search(r"what was lent is back (\S+) after it was needed", donor.text()[seen:])
            mib = (prompt_blocks - own + blocks) * block / 2**20
            if mib < 64:
                continue  # it had lent too little
            assert back is not None, "what was needed did not come back"
            times.append(go_duration(back[1]))
            needed.append(mib)
            ttft.append(answer.ttft)
        bench.asked("needs of 64 MiB and more", len(times), rounds, least=True)
        if not times:
            continue
        print(f"borrower {'in a step' if busy else 'idle'}, donor {'decodes' if decodes else 'does nothing'} beside: "
              f"{len(times)} needs of {min(needed):.0f} MiB and more: median {statistics.median(times) * 1e3:.2f} ms, "
              f"p90 {percentile(times, 90) * 1e3:.2f} ms, p99 {percentile(times, 99) * 1e3:.2f} ms, "
              f"longest {max(times) * 1e3:.2f} ms; the donor's TTFT: median {statistics.median(ttft) * 1e3:.0f} ms")
        if busy:
            bench.asked("longest reclaim in a step, ms (deadline and 2)", max(times) * 1e3, 52)
        elif not decodes:
            bench.asked("p99 of reclaims from an idle borrower, ms", percentile(times, 99) * 1e3, 5)


def lend(bench):
    """A donor that decodes is asked for 1 GiB at once, nearly all it has; then it computes prompts on what came back. With
    --scrub_on_return and without, interleaved. At last its gaps between tokens, while it lends and while it does not."""
    want, tokens = 2**30, 100
    sides = [bench.side(f"scrub_{on}", 1.05 * want // TOKEN_BYTES, chat_flags=(f"--scrub_on_return={on}",), window="100ms",
                        broker_flags=("--lease_headroom=0",)) for on in ("true", "false")]
    seen = {side.name: {"quiet": [], "lending": [], "grant": [], "ttft": []} for side in sides}
    for number in range(bench.args.rounds):
        for side in bench.rng.sample(sides, 2):
            figures = seen[side.name]
            figures["quiet"].append(side.ask(bench.tokens(16), tokens).longest_gap)
            asker = Asker(side, number)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                decodes = pool.submit(side.ask, bench.tokens(16), tokens)
                time.sleep(0.2)
                seconds, leases = asker.borrow(want)
                figures["grant"].append(seconds)
                figures["lending"].append(decodes.result().longest_gap)
            asker.give_back(leases)
            figures["ttft"].append(side.ask(bench.tokens(1024), 1).ttft)
    print("medians; ms        longest gap, quiet   and lending 1 GiB   until granted   TTFT of 1024 tokens after it")
    for name, figures in seen.items():
        quiet, lending, grant, ttft = (statistics.median(figures[k]) * 1e3 for k in ("quiet", "lending", "grant", "ttft"))
        print(f"{name:12}{quiet:26.1f}{lending:20.1f}{grant:16.1f}{ttft:31.1f}")
    ratio = [a / b for a, b in zip(seen["scrub_true"]["ttft"], seen["scrub_false"]["ttft"])]
    low, high = interval(ratio, bench.rng)
    print(f"TTFT on memory that came back, scrubbed / not: median {statistics.median(ratio):.3f}, 95 % interval {low:.3f} to {high:.3f}")
    gaps_while_lending(bench, want)


def gaps_while_lending(bench, want):
    """Pairs of equal answers, in turn first: in the midst of one, `want` bytes are lent. The gaps between its tokens from
    the request to the last grant, beside those between the same tokens of the other; --gaps of them, over several loans. A
    loan is taken back before the next. The donor has no prefix cache: before it evicts of that, it takes loans back. --dirty:
    before each pair it has sequences of so many tokens at once, so that what it lends was written since it was zeroed."""
    side = bench.side("gaps", 1.05 * want // TOKEN_BYTES, chat_flags=("--transport=shm", "--enable_prefix_caching=false"),
                      window="100ms", broker_flags=("--lease_headroom=0",))
    held = (1024, 120)  # tokens of a prompt and of its answer, which lasts until the other prompts are computed
    pool = concurrent.futures.ThreadPoolExecutor(64)
    tokens, look_every = 600, 0.05  # who looks costs the donor something: it looks on both sides alike
    quiet, lending, granted, outlasted = [], [], [], 0
    while len(lending) < bench.args.gaps:
        list(pool.map(lambda prompt: side.ask(prompt, held[1]), [bench.tokens(held[0]) for _ in range(bench.args.dirty // sum(held))]))
        time.sleep(0.3)  # it lends what it has not needed for 0.1 s
        prompt, answers = bench.tokens(16), {}
        for loan in bench.rng.sample((True, False), 2):
            asker = Asker(side, f"of-gaps-{len(granted)}") if loan else None
            decodes = pool.submit(side.ask, prompt, tokens)
            time.sleep(0.2)
            if loan:
                begun = time.monotonic()
                seconds, leases = asker.borrow(want, look_every)
                granted.append(seconds)
            while not decodes.done():
                side.chat.metrics()
                time.sleep(look_every)
            answers[loan] = decodes.result()
            if loan:
                asker.give_back(leases)
        outlasted += answers[True].gaps[-1][1] < begun + seconds
        for (a, b), (c, d) in zip(answers[True].gaps, answers[False].gaps):
            if b > begun and a < begun + seconds:
                lending.append(b - a)
                quiet.append(d - c)
    p99 = percentile(lending, 99) / percentile(quiet, 99)
    low, high = ratio_interval(lending, quiet, 99, bench.rng)
    dirt = f"after {bench.args.dirty} tokens held each" if bench.args.dirty else "of memory as it came back"
    print(f"\n{len(granted)} loans of {want / 2**30:.2g} GiB {dirt}; granted after {statistics.median(granted):.2f} s (median); "
          f"{outlasted} of them outlasted the answer")
    print(f"gaps between the donor's tokens, ms{'gaps':>7}{'p50':>8}{'p90':>8}{'p99':>8}{'longest':>9}")
    for name, gaps in (("while it lends", lending), ("without", quiet)):
        p50, p90, most = (percentile(gaps, p) * 1e3 for p in (50, 90, 99))
        print(f"  {name:33}{len(gaps):7}{p50:8.2f}{p90:8.2f}{most:8.2f}{max(gaps) * 1e3:9.2f}")
    bench.asked(f"p99 of the gaps while {want / 2**30:.2g} GiB is lent / without", p99, 1.1)
    print(f"        95 % interval {low:.3f} to {high:.3f}")


def go_duration(text):
    """Seconds of absl's notation: 1.5ms, 20us, 1s."""
    return sum(float(n) * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[u] for n, u in re.findall(r"([\d.]+)(ms|us|ns|s)", text))


def stall(bench):
    """Prefills of 64 new tokens behind about 1,000 that lie on lease, streamed; seconds as in the paper's figure 10."""
    print(f"{'link':>9}{'queue':>8}{'load':>8}{'execute':>9}{'store':>8}{'stall':>9}{'stall / prefill':>17}")
    for gbps in bench.args.gbps:
        side = bench.side(f"link_{gbps}", 1024, (6144,), ("--stream=lsc", f"--link_gbps={gbps}"))
        prompts = [bench.tokens(900) for _ in range(4)]
        for prompt in prompts:
            side.ask(prompt, 1)
        before = side.chat.metrics()
        for _ in range(bench.args.rounds):
            for prompt in prompts:
                prompt += bench.tokens(64)
                side.ask(prompt, 1)
        after = side.chat.metrics()
        spent = {k: v - before[k] for k, v in after.items() if "_sum" in k}
        phase = {p: next(v for k, v in spent.items() if "prefill_phase" in k and f'phase="{p}"' in k)
                 for p in ("queue", "load", "execute", "store")}
        stalled = next(v for k, v in spent.items() if "kv_stall_seconds" in k)
        share = stalled / (phase["execute"] + stalled)
        print(f"{gbps:4} Gb/s{phase['queue']:8.3f}{phase['load']:8.3f}{phase['execute']:9.3f}{phase['store']:8.3f}{stalled:9.4f}"
              f"{share:16.2%}")
        if gbps >= 20:  # below, a layer's transfer takes more than half of its products' time
            bench.asked(f"stall / prefill at {gbps} Gbit/s", share, 0.01)


def interference(bench):
    """Pairs of windows: the donor beside a borrower on its leases, and beside the same borrower with all memory local."""
    flags = ("--stream=in_place",)
    leased = bench.side("leased", 1024, (8192,), flags)
    local = bench.side("local", 8192, (8192,), ("--transport=none",), ("--transport=none",))
    prompts = {side.name: [bench.tokens(800) for _ in range(6)] for side in (leased, local)}
    ratios = {"TTFT": [], "TPOT": []}
    for _ in range(bench.args.rounds):
        seen = {}
        for side in bench.rng.sample((leased, local), 2):
            stop = threading.Event()

            def load():
                i = 0
                while not stop.is_set():
                    prompt = prompts[side.name][i % 6]
                    side.ask(prompt, 16)
                    i += 1

            thread = threading.Thread(target=load)
            thread.start()
            time.sleep(0.5)
            answers = [side.ask(bench.tokens(128), 24, model="donor0") for _ in range(6)]
            stop.set()
            thread.join()
            seen[side.name] = (statistics.median(a.ttft for a in answers), statistics.median(a.tpot for a in answers))
        for i, name in enumerate(ratios):
            ratios[name].append(seen["leased"][i] / seen["local"][i])
    print_sources(leased)
    for name, values in ratios.items():
        low, high = interval(values, bench.rng)
        print(f"donor's {name} beside leases / beside the same borrower with local memory: median "
              f"{statistics.median(values):.3f}, 95 % interval {low:.3f} to {high:.3f}, {len(values)} pairs")
        bench.asked(f"lower end of the slow-down of {name}", low - 1, {"TTFT": 0.05, "TPOT": 0.03}[name])


def unused(bench):
    """Instructions of a step with sharing configured and nobody lending, against no broker at all (callgrind)."""
    from swiftcache.v1 import engine_pb2, engine_pb2_grpc
    cluster = Cluster(bench.binaries, bench.folder)
    cluster.start_broker()
    tokens, counts = 16, {}
    for name, flags in (("alone", ("--broker=",)), ("sharing", (f"--broker={cluster.broker.grpc}",))):
        out = bench.folder / f"callgrind.{name}"
        engine = Process(["valgrind", "--tool=callgrind", "--fair-sched=yes", f"--callgrind-out-file={out}",
                          "--toggle-collect=swiftcache::engine::exec::StepLoop::Step()", bench.binaries / "swiftcache-engine",
                          f"--model={bench.args.model}", "--model_name=chat", "--threads=1", "--kv_cache_bytes=64MiB",
                          f"--shm_dir={cluster.shm_dir}", "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0", *flags],
                         bench.folder / f"{name}.log")
        engine.wait_healthy(3600)  # callgrind counts the loading too
        stub = engine_pb2_grpc.EngineServiceStub(grpc.insecure_channel(engine.grpc))
        request = engine_pb2.EngineGenerateRequest(
            request_id="1", token_ids=[5, 9, 11], sampling=bench.pb.Sampling(temperature=0, max_tokens=tokens, ignore_eos=True))
        begun = time.monotonic()
        got = sum(len(message.token_ids) for message in stub.Generate(request, timeout=3000))
        assert got == tokens, got
        seconds = time.monotonic() - begun
        engine.stop(120)
        counts[name] = int(re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.M).group(1)) / tokens
        print(f"{name:8}: {counts[name]:14,.0f} instructions a step of one token ({tokens} steps; {seconds:.1f} s under callgrind)")
    cluster.stop()
    cluster.cleanup()
    bench.asked("instructions with sharing / alone", counts["sharing"] / counts["alone"], 1.01)


def main():
    parser = arguments(__doc__, ["ttft", "ttft_open", "reclaim", "lend", "longest", "stall", "interference", "unused"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--gaps", type=int, default=1000, help="lend: so many, or a few more, while it lends, and as many without")
    parser.add_argument("--dirty", type=int, default=0, help="lend: tokens that the donor holds before each loan; 46000 write nearly all of it")
    parser.add_argument("--gbps", type=lambda s: [int(v) for v in s.split(",")], default=[200, 50, 20, 5])
    args = parser.parse_args()
    dtype = "f32" if args.what == "reclaim" else "bf16"
    print(f"machine: {cpu_name()}, {os.cpu_count()} cores; model: {pathlib.Path(args.model).name}, KV {dtype}; "
          f"command: {' '.join(sys.argv)}")
    with Bench(args) as bench:
        globals()[args.what](bench)
    sys.exit(bench.missed > 0)


if __name__ == "__main__":
    main()
