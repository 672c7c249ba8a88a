#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What leases are worth to who borrows: real processes, a real model, each figure beside its bound or its peer. (What
they cost who lends: donors.py.)

  tests/bench/leases.py ttft                 turns 2 and later, with leases of busy donors, without, with all memory local, and with
                                             llama-server's cache in host memory
  tests/bench/leases.py ttft_open            the same with donors that do nothing, without llama-server, under Poisson arrivals
  tests/bench/leases.py longest              a prompt many times longer than the engine's own memory
  tests/bench/leases.py stall                what layer streaming does not hide, at several link speeds
  tests/bench/leases.py decode               time of a token that streams its KV, beside another build's (--other) if one is named
  tests/bench/leases.py unused               what sharing costs an engine that nobody lends to (needs valgrind)
  tests/bench/leases.py guard                ttft, short, beside donors that do nothing, with a bound that a busy machine keeps and broken leases do not: for CI

Needs the binaries (--bin) and the model of deploy/fetch-model.sh (--model); run it with the Python of tests/run.sh
(~/.cache/swiftcache/test-venv/bin/python) on a machine that does nothing else. Sides of a comparison are interleaved:
ratios hold on a noisy machine, absolute times do not. Ends with 1 if a figure misses what was asked of it.
"""
import collections
import concurrent.futures
import contextlib
import pathlib
import random
import re
import statistics
import subprocess
import threading
import time

import grpc
import instructions
from servers import Llama, add_llama_flag, llama_missing
from sides import Conversations, Revoker, Side, arguments, interval, percentile, random_tokens, ratio_interval, run

from conftest import Cluster, Process  # of tests/e2e, which sides put on the path


OWN = 2048  # tokens of memory, of the chat engine
LEASES = {"in_place": ("--stream=in_place",), "lsc_200gbps": ("--stream=lsc", "--link_gbps=200")}
ALONE = {"chat_flags": ("--transport=none",), "donor_flags": ("--transport=none",)}
ALL_LOCAL = ("all_local", "all_local_too")
WARM_UP = 24  # turns
# What a donor took back it lends again before its turn comes again; an idle lease is kept for 16 of these, so that on
# a slow machine, too, donors stay full.
WINDOW = "30s"


def borrowing_sides(bench, lent, **kwargs):
    """One for each way to read leases."""
    return [bench.side(name, OWN, lent, flags, **kwargs) for name, flags in LEASES.items()]


def fill(bench, side, lent):
    """All that may be lent to it is, and holds what nobody asks for again."""
    for _ in range((OWN + sum(lent)) // 1024):
        side.ask(bench.tokens(1024), 1)


def bounded_sides(bench):
    """With leases, and the bound, which has as much as all of them for itself, and stands there twice, so that it is seen by how
    much figures of the same differ. Each has two neighbours, alike but for whether they lend."""
    lent = 2 * (bench.args.lent,)
    return [*borrowing_sides(bench, lent, window=WINDOW),
            *(bench.side(name, OWN + sum(lent), lent, **ALONE) for name in ALL_LOCAL)]


def ttft_sides(bench):
    """The same beside as much own memory without leases."""
    return [bench.side("without", OWN, 2 * (bench.args.lent,), **ALONE), *bounded_sides(bench)]


def host_memory_peer(bench):
    """llama-server with as much KV memory, and 8 GiB of host memory for what it evicts; nobody where it is not built. Its
    threads sleep while they wait: beside busy neighbours spinning would cost it much more."""
    if missing := llama_missing(bench.args):
        print(f"NOT COMPARED with a cache in host memory: {missing}")
        return []
    bench.slot_tokens = OWN
    return [bench.add(Llama(bench, "llama_host", 1, ("--cache-ram", 8192), {"OMP_WAIT_POLICY": "passive"}))]


class Load:
    """What the two neighbours of a side are asked while it answers a turn: short prompts with pauses, and one of them, in
    every LONG_EVERY-th turn, first a prompt for which a donor needs what it lent. All sides have two neighbours, and the same load in
    their n-th turn: what neighbours take of the processors is in every side's time."""

    SHORT, LONG, ANSWER = 64, 1536, 8  # tokens
    LONG_EVERY, PAUSE = 10, 0.1  # turns, seconds in the mean

    def __init__(self, home):
        """`home`: the side whose neighbours stand beside a server that has none."""
        self.home = home
        self.turns = collections.Counter()
        self.pool = concurrent.futures.ThreadPoolExecutor(2)

    @contextlib.contextmanager
    def beside(self, side):
        self.turns[side.name] += 1
        turn, ending = self.turns[side.name], threading.Event()
        streams = [self.pool.submit(self._ask, side if isinstance(side, Side) else self.home, number, turn, ending) for number in range(2)]
        try:
            yield
        finally:
            ending.set()
            for stream in streams:
                stream.result()

    def _ask(self, side, number, turn, ending):
        rng, name = random.Random(f"{turn}/{number}"), f"donor{number}"
        if turn % (2 * self.LONG_EVERY) == number * self.LONG_EVERY:
            side.ask(random_tokens(rng, self.LONG), self.ANSWER, name)
        while not ending.wait(rng.expovariate(1 / self.PAUSE)):
            side.ask(random_tokens(rng, self.SHORT), self.ANSWER, name)


def revoked(side):
    """Leases, so far."""
    return sum(int(donor.metric("swiftcache_lease_revoked_total")) for donor in side.donors)


def print_ttft(bench, title, samples, block):  # so many in a row may share what slowed one of them
    print(f"\n{title}: TTFT of turns 2 and later, ms")
    at = {p: {name: percentile(values, p) for name, values in samples.items()} for p in (50, 90, 99)}
    ratios = [(p, peer) for p, peer in ((99, "without"), (99, "all_local"), (50, "all_local")) if peer in samples]
    print(f"{'side':14}{'samples':>8}" + "".join(f"{f'p{p}':>9}" for p in at) + "".join(f"{f'p{p} / {peer}':>17}" for p, peer in ratios))
    for name, values in samples.items():
        print(f"{name:14}{len(values):8}" + "".join(f"{of[name] * 1e3:9.1f}" for of in at.values()) +
              "".join(f"{at[p][name] / at[p][peer]:17.3f}" for p, peer in ratios))
    for side in LEASES:
        for peer, bound in (("without", 0.31), ("llama_host", 1)):
            if peer in samples:
                low, high = ratio_interval(samples[side], samples[peer], 99, bench.rng, block)
                bench.asked(f"p99 of {side} / {peer}, upper end of the 95 % interval, {len(samples[side])} pairs, from {low:.3f}", high, bound)
        low, high = ratio_interval(samples[side], samples["all_local"], 99, bench.rng, block)
        bench.asked(f"p99 of {side} / all_local, upper end of the 95 % interval, from {low:.3f}", high, 1.15)
    for p in (99, 50):
        low, high = ratio_interval(*(samples[name] for name in ALL_LOCAL[::-1]), p, bench.rng, block)
        print(f"        p{p} of all_local_too / all_local, which are the same: {at[p]['all_local_too'] / at[p]['all_local']:.3f} "
              f"({low:.3f} to {high:.3f})")


def print_revoked(bench, requests):
    """First tokens of the turns during which a lease was revoked, beside the same turns' with all memory local."""
    print("\nTurns during which a lease was revoked: TTFT, ms")
    for side in LEASES:
        those = [answers for answers in requests if answers[side].revoked > 0]
        bench.asked(f"turns of {side} during which a lease was revoked", len(those), 1, least=True)
        if those:
            ours, local = (first_tokens(those)[name] for name in (side, "all_local"))
            figures = [(name, of(ours) * 1e3, of(local) * 1e3) for name, of in (("p50", statistics.median), ("longest", max))]
            print(f"        {sum(answers[side].revoked for answers in those)} leases; " +
                  ", ".join(f"{name} {a:.1f}, all_local's {b:.1f} ({a / b:.3f})" for name, a, b in figures))


def print_slowest(answers, count=5):
    """The slowest first tokens of each side beside the same request's on the others: [request] -> {side: Answer}."""
    print("\nslowest first tokens, ms, and the same request on each side (tokens computed, found in leases)")
    for name in answers[0]:
        for request in sorted(answers, key=lambda r: -r[name].ttft)[:count]:
            print(f"  {name:12}" + ", ".join(f"{side} {a.ttft * 1e3:.0f} ({a.computed}, {a.usage.cached_tokens.donor})"
                                             for side, a in request.items()))


def print_sources(side):
    m = side.chat.metrics()
    parts = {k.split("{")[0]: v for k, v in m.items() if "lease_borrowed" in k or "lease_lost" in k}
    parts |= {re.search(r'source="(\w+)"', k)[1]: v for k, v in m.items() if "prompt_tokens_by_source" in k}
    print(f"  {side.name}: " + ", ".join(f"{k} {v:.0f}" for k, v in sorted(parts.items())))


def take_turns(bench, talks, sides, count, beside=contextlib.nullcontext):
    """Until `count` of turns 2 and later are answered; those answers: [request] -> {side: Answer}. Talks go on with our ids; a
    peer, which computes otherwise, has the same prompts."""
    ours, requests, wrong = [side.name for side in sides if isinstance(side, Side)], [], 0
    while len(requests) < count:
        slot, talk = talks.next()
        answers = {}
        for side in bench.rng.sample(sides, len(sides)):
            before = revoked(side) if side.name in LEASES else 0
            with beside(side):
                answers[side.name] = side.ask(talk["prompt"], talks.ANSWER)
                answers[side.name].revoked = revoked(side) - before if side.name in LEASES else 0
        ids = answers[ours[-1]].ids
        wrong += sum(answers[name].ids != ids for name in ours)
        requests += [answers] if talk["turn"] > 1 else []
        talks.answered(slot, ids)
    bench.asked("answers that differ between the sides", wrong, 0)
    return requests


def first_tokens(requests):
    return {name: [answers[name].ttft for answers in requests] for name in requests[0]}


def ttft(bench):
    bench.args.threads = 0  # neighbours compute too: by default they divide the cores
    ours, peers = (bounded_sides(bench), []) if bench.args.bound_only else (ttft_sides(bench), host_memory_peer(bench))
    sides, load = ours + peers, Load(home=ours[0])
    borrowers = [side for side in ours if side.name in LEASES]
    for side in borrowers:
        fill(bench, side, 2 * (bench.args.lent,))
    talks = Conversations(bench, active=8)  # of 768 tokens on average: three times the own memory
    take_turns(bench, talks, sides, WARM_UP, load.beside)
    before = [revoked(side) for side in borrowers]
    requests = take_turns(bench, talks, sides, bench.args.samples, load.beside)
    for side in ours:
        print_sources(side)
    for side, then in zip(borrowers, before):
        lost = [answers[side.name].computed - answers["all_local"].computed for answers in requests]
        print(f"  {side.name}: {sum(n > 0 for n in lost)} of {len(requests)} turns computed {sum(lost)} tokens again")
        bench.asked(f"leases of {side.name} revoked meanwhile", revoked(side) - then, 1, least=True)
    print_ttft(bench, "Closed loop, one client, busy neighbours", first_tokens(requests), Load.LONG_EVERY)
    print_revoked(bench, requests)


def guard(bench):
    sides = [bench.side("without", OWN, chat_flags=("--transport=none",)), bench.side("leases", OWN, 2 * (bench.args.lent,))]
    talks = Conversations(bench, active=8)
    take_turns(bench, talks, sides, 16)
    p50 = {name: percentile(values, 50) for name, values in first_tokens(take_turns(bench, talks, sides, 24)).items()}
    for side in sides:
        print_sources(side)
    bench.asked("p50 of first tokens with leases / without", p50["leases"] / p50["without"], 0.5)


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
    print_ttft(bench, f"Poisson arrivals in windows of eight, {rate:.2f}/s (60 % of what the side without leases can serve)", first_tokens(requests),
               len(talks.active))


def longest(bench):
    own, prompt = 1024, bench.tokens(8000)
    lent = (8192, 8192)  # twice what the prompt needs: what a storm takes away has room elsewhere
    sides = [bench.side(name, own, lent, (f"--stream={name}",)) for name in ("in_place", "lsc")]
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
    longest_in_a_storm(bench, sides[0], full)


def longest_in_a_storm(bench, side, full):
    """The same while a lease is taken back five times a second."""
    seconds, refused, same = [], 0, True
    with Revoker(bench, side, (0.1, 0.3)) as revoker:
        for _ in range(bench.args.rounds):
            prompt = bench.tokens(8000)
            try:
                answer = side.ask(prompt, 48)
                seconds.append(answer.seconds)
                same = same and answer.ids == full.ask(prompt, 48).ids
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.OUT_OF_RANGE, error
                refused += 1
    print(f"in a storm of {len(revoker.revoked)} revocations: {len(seconds)} served in {statistics.median(seconds or [0]):.2f} s (median), {refused} refused")
    bench.asked("requests served in the storm", len(seconds), 1, least=True)
    bench.asked("in a storm the tokens are those of enough memory", same, True)


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


def decode(bench):
    """Answers of 64 tokens to a prompt of which about 1,100 tokens lie on lease, streamed; the builds take turns."""
    builds = {"this": bench.binaries, **({"other": pathlib.Path(bench.args.other).resolve()} if bench.args.other else {})}
    print(f"{'link':>9}{'build':>8}{'leased':>8}{'token':>10}{'stall':>10}")
    for gbps in bench.args.gbps:
        sides = {}
        for name, bench.binaries in builds.items():
            sides[name] = bench.side(f"{name}_{gbps}", 1024, (6144,), ("--stream=lsc", f"--link_gbps={gbps}",
                                                                              f"--link_latency={bench.args.latency}"))
        prompt = bench.tokens(1500)
        seconds, stalled, leased = ({name: [] for name in sides} for _ in range(3))
        for side in sides.values():
            side.ask(prompt, 64)
        for _ in range(bench.args.rounds):
            for name, side in sides.items():
                before = side.chat.metric("swiftcache_kv_stall_seconds_sum")
                answer = side.ask(prompt, 64)
                stalled[name].append((side.chat.metric("swiftcache_kv_stall_seconds_sum") - before) / 64)
                seconds[name].append(answer.tpot)
                leased[name].append(answer.usage.cached_tokens.donor)
        for name in sides:
            print(f"{gbps:4} Gb/s{name:>8}{statistics.median(leased[name]):8.0f}{statistics.median(seconds[name]) * 1e3:7.2f} ms"
                  f"{statistics.median(stalled[name]) * 1e3:7.3f} ms")
        if "other" in sides:
            ratios = [a / b for a, b in zip(seconds["this"], seconds["other"])]
            low, high = interval(ratios, bench.rng)
            print(f"{gbps:4} Gb/s: a token of this build / of the other: {statistics.median(ratios):.3f} in the median, "
                  f"95 % interval {low:.3f} to {high:.3f}")
        bench.stop_all()


class Unlent:
    """An engine alone, or one that shares with a broker behind which nobody lends."""

    def __init__(self, bench, cluster, name):
        from swiftcache.v1 import engine_pb2, engine_pb2_grpc
        self.bench, self.request = bench, engine_pb2.EngineGenerateRequest
        broker = cluster.broker.grpc if name == "sharing" else ""
        self.process = Process([bench.binaries / "swiftcache-engine", f"--model={bench.args.model}", f"--name={name}",
                                f"--broker={broker}", f"--shm_dir={cluster.shm_dir}", "--kv_cache_bytes=1GiB", "--target_itl=0",
                                "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0"], bench.folder / f"{name}.log")
        self.process.wait_healthy()
        self.stub = engine_pb2_grpc.EngineServiceStub(grpc.insecure_channel(self.process.grpc))

    def ask(self, number, prompt, tokens):
        """The time of each token."""
        sampling = self.bench.pb.Sampling(temperature=0, max_tokens=tokens, ignore_eos=True)
        request = self.request(request_id=str(number), token_ids=prompt, sampling=sampling)
        times = [time.monotonic() for message in self.stub.Generate(request, timeout=3000) for _ in message.token_ids]
        assert len(times) == tokens, times
        return times

    def decode(self, pool, prompts, tokens):
        """The time of a step in which all of them decode: the median gap between the last first token and the first last one."""
        answers = list(pool.map(lambda i: self.ask(i, prompts[i], tokens), range(len(prompts))))
        begin, end = max(times[0] for times in answers), min(times[-1] for times in answers)
        gaps = [b - a for times in answers for a, b in zip(times, times[1:]) if begin <= a and b <= end]
        assert len(gaps) >= 10 * len(prompts), f"they decoded together for only {len(gaps) // len(prompts)} steps"
        return statistics.median(gaps)


def unused(bench):
    """64 sequences of 4,096 tokens, which have all but the last 49 of them in common, decode beside nobody who lends: the
    wall time of a step, in turns; then the loop around a model that computes nothing: time and instructions (callgrind)."""
    loop = bench.binaries / "swiftcache-bookkeeping-bench"
    if not loop.exists():
        raise SystemExit(f"{loop} is missing: cmake --build build/release --target swiftcache-bookkeeping-bench")
    cluster = Cluster(bench.binaries, bench.folder)
    cluster.start_broker()
    pool = concurrent.futures.ThreadPoolExecutor(64)
    sides = [Unlent(bench, cluster, name) for name in ("alone", "sharing")]
    answer, own = 33, 16
    shared, ratios = bench.tokens(4096 - own - answer), []
    for _ in range(bench.args.rounds + 1):
        prompts = [shared + bench.tokens(own) for _ in range(64)]
        seconds = {side: side.decode(pool, prompts, answer) for side in bench.rng.sample(sides, 2)}
        ratios.append(seconds[sides[1]] / seconds[sides[0]])
    for side in sides:
        side.process.stop()
    cluster.stop()
    cluster.cleanup()
    step = seconds[sides[0]] * 1e6
    low, high = interval(ratios[1:], bench.rng)  # the first round computes what is shared
    print(f"a step of 64 rows: {step / 1e3:.1f} ms alone; sharing / alone: median {statistics.median(ratios[1:]):.4f}, 95 % "
          f"interval {low:.4f} to {high:.4f}")
    bench.asked("wall time of a step with sharing / alone: upper end", high, 1.05)  # the interval is some 0.06 wide

    said = subprocess.run([loop, "unused"], check=True, capture_output=True, text=True).stdout.strip()
    print(said)
    bench.asked("time that sharing adds to the loop / a step", float(re.search(r"adds ([\d.]+)", said)[1]) / step, 0.01)
    counts = [instructions.count(bench.binaries, ["swiftcache-bookkeeping-bench", f"counted-{name}"]) / 256 for name in ("alone", "sharing")]
    print(f"instructions of the loop in a step: alone {counts[0]:,.0f}, sharing adds {counts[1] - counts[0]:,.0f}")


def main():
    parser = arguments(__doc__, ["ttft", "ttft_open", "longest", "stall", "decode", "unused", "guard"])
    parser.add_argument("--rounds", type=int, help="of longest 5 by default, else 20")
    parser.add_argument("--latency", default="0", help="of the link, for decode")
    parser.add_argument("--other", help="folder of another build's binaries, for decode")
    parser.add_argument("--lent", type=int, default=4 * OWN, help="tokens of memory of each neighbour, for ttft: with 4096, what one of "
                        "them takes back has no room elsewhere, and the slowest turns are those that compute it again")
    add_llama_flag(parser)
    parser.add_argument("--bound_only", action="store_true", help="ttft beside all memory local alone, which leaves time for more --samples")
    parser.add_argument("--gbps", type=lambda s: [int(v) for v in s.split(",")], default=[200, 50, 20, 5])
    args = parser.parse_args()
    args.rounds = args.rounds or (5 if args.what == "longest" else 20)
    run(globals()[args.what], args)


if __name__ == "__main__":
    main()
