#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole servers beside llama-server and vLLM, through OpenAI's HTTP: the same conversations and threads, in turns. llama-server
has the same file of weights (Q4_1); vLLM reads no such file and has weights in bf16 that are made of it: more bytes a token.

  tests/bench/serving.py turns     several turns of 8 conversations that all fit in memory: closed loop
  tests/bench/serving.py arrivals  the same, with Poisson arrivals that keep llama-server busy for 60 % of the time
  tests/bench/serving.py third     closed loop of 9 conversations over KV memory for 3: with leases, and llama-server without
                                   and with 8 GiB of host memory for what it evicts
  tests/bench/serving.py mixed     8 running streams when a prompt of 4,096 tokens arrives: the longest gap, beside --target_itl
  tests/bench/serving.py two       an engine beside one that has an endless row of 3,000-token prompts, on the same two cores

Needs the release binaries, the model of deploy/fetch-model.sh and the peer of tests/bench/llama.sh; vLLM takes part in turns and
arrivals where tests/bench/vllm.sh has installed it. Run it with the Python of tests/run.sh
(~/.cache/swiftcache/test-venv/bin/python) on a machine that does nothing else. A side has the machine for some seconds, then the
next one. Ends with 1 if a figure misses what was asked of it.
"""
import argparse
import concurrent.futures
import pathlib
import random
import re
import statistics
import subprocess
import sys
import threading
import time

from servers import Llama, Ours, TwoLlamas, Vllm, add_llama_flag, llama_missing
from sides import Bench, go_duration, percentile
from talk import Conversation, words

from conftest import CACHE, ROOT, SMOLLM2  # of tests/e2e, which sides put on the path

FIRST, TURN, ANSWER, TURNS = 300, 48, 32, 7  # words, words, tokens; about 900 tokens at the last turn
SLOT = 1024  # tokens of KV that a conversation may need


def unpaired_ratio_interval(above, below, p, rng, rounds=1000):
    """95 % bootstrap interval of the ratio of two samples' percentiles; nothing pairs their requests."""
    ratios = sorted(percentile(rng.choices(above, k=len(above)), p) / percentile(rng.choices(below, k=len(below)), p)
                    for _ in range(rounds))
    return ratios[int(rounds * 0.025)], ratios[int(rounds * 0.975)]


class ServingBench(Bench):
    def __init__(self, args):
        super().__init__(args)
        self.pool = concurrent.futures.ThreadPoolExecutor(64)
        self.slot_tokens = SLOT


class Talks:
    """The conversations of one side, and what it answered from the second turn on."""

    def __init__(self, side, count):
        self.side, self.begun = side, 0
        self.lock = threading.Lock()
        self.active = [self.fresh() for _ in range(count)]
        self.answers = []

    def fresh(self):
        self.begun += 1
        return Conversation(self.begun, FIRST, TURN)

    def take_turn(self, slot):
        talk = self.active[slot]
        answer = self.side.ask(talk.messages, ANSWER)
        with self.lock:
            if talk.turn > 1:
                self.answers.append(answer)
            talk.answered(answer.text)
            if talk.turn > TURNS:
                self.active[slot] = self.fresh()
        return answer


def closed_loop(bench, all_talks, clients, samples, window=8.0, pick=None):
    """`clients` that take turn after turn without a pause; a side has the machine for `window` seconds at a time."""
    def client(talks, slots, until):
        while time.monotonic() < until:
            for slot in slots:
                if time.monotonic() < until:
                    talks.take_turn(slot)

    warm_up = True
    while min(len(talks.answers) for talks in all_talks) < samples:
        for talks in bench.rng.sample(all_talks, len(all_talks)):
            until = time.monotonic() + window
            slots = range(len(talks.active))
            list(bench.pool.map(lambda first: client(talks, slots[first::clients], until), range(clients)))
        if warm_up:
            warm_up = False
            for talks in all_talks:
                talks.answers.clear()


def open_loop(bench, all_talks, rate, samples):
    """Poisson arrivals in windows, in each of which a conversation takes at most one turn; the same for every side."""
    while min(len(talks.answers) for talks in all_talks) < samples:
        at, plan = 0.0, []
        for slot in bench.rng.sample(range(len(all_talks[0].active)), len(all_talks[0].active)):
            at += bench.rng.expovariate(rate)
            plan.append((at, slot))
        for talks in bench.rng.sample(all_talks, len(all_talks)):
            begun, futures = time.monotonic(), []
            for at, slot in plan:
                time.sleep(max(0.0, begun + at - time.monotonic()))
                futures.append(bench.pool.submit(talks.take_turn, slot))
            for future in futures:
                future.result()


def compare(bench, title, all_talks, limits):
    """A table of all sides, and each limit: (side, figure, percentile, peer, bound)."""
    print(f"\n{title}: turns 2 and later, ms\n{'side':16}{'samples':>8}" + "".join(f"{n:>10}" for n in (
        "TTFT p50", "p90", "p99", "TPOT p50", "p99")))
    by_name = {talks.side.name: talks.answers for talks in all_talks}
    for name, answers in by_name.items():
        ttft, tpot = [a.ttft * 1e3 for a in answers], [a.tpot * 1e3 for a in answers]
        print(f"{name:16}{len(answers):8}" + "".join(f"{percentile(ttft, p):10.1f}" for p in (50, 90, 99)) +
              "".join(f"{percentile(tpot, p):10.2f}" for p in (50, 99)))
    for side, figure, p, peer, bound in limits:
        mine, theirs = ([getattr(a, figure) for a in by_name[name]] for name in (side, peer))
        low, high = unpaired_ratio_interval(mine, theirs, p, bench.rng)
        bench.asked(f"{figure.upper()} p{p} of {side} / {peer}, {percentile(mine, p) / percentile(theirs, p):.3f}: upper end of the 95 % "
                    f"interval, from {low:.3f}", high, bound)
    for talks in all_talks:
        talks.answers.clear()


IN_MEMORY = 8  # conversations, all resident


def resident_talks(bench):
    bench.add(Ours(bench, "ours", IN_MEMORY * SLOT))
    bench.add(Llama(bench, "llama", IN_MEMORY))
    if bench.args.vllm.exists():
        bench.add(Vllm(bench, "vllm"))
    return [Talks(side, IN_MEMORY) for side in bench.sides]


def resident_bounds(all_talks):
    return [("ours", figure, p, peer.side.name, 0.6) for peer in all_talks[1:] for figure in ("ttft", "tpot") for p in (50, 99)]


def turns(bench):
    all_talks = resident_talks(bench)
    closed_loop(bench, all_talks, IN_MEMORY, bench.args.samples)
    compare(bench, "Closed loop, 8 clients, all in memory", all_talks, resident_bounds(all_talks))


def arrivals(bench):
    all_talks = resident_talks(bench)
    served = [[talks.take_turn(i % IN_MEMORY).seconds for i in range(3 * IN_MEMORY)] for talks in all_talks]  # all warm
    rate = 0.6 / statistics.mean(served[1][IN_MEMORY:])
    for talks in all_talks:
        talks.answers.clear()
    open_loop(bench, all_talks, rate, bench.args.samples)
    compare(bench, f"Poisson arrivals, {rate:.2f}/s (60 % of what llama-server serves one by one)", all_talks, resident_bounds(all_talks))


def third(bench):
    count, slots = 9, 3
    sides = [bench.add(Ours(bench, "leases", slots * SLOT, donors=(8 * SLOT, 8 * SLOT))),
             bench.add(Llama(bench, "llama", slots, ("--cache-ram", 0))),
             bench.add(Llama(bench, "llama_host", slots, ("--cache-ram", 8192)))]
    all_talks = [Talks(side, count) for side in sides]
    closed_loop(bench, all_talks, 1, bench.args.samples, window=12)
    compare(bench, "One client, KV memory for a third of the conversations", all_talks,
            [("leases", "ttft", 99, "llama", 0.08), ("leases", "ttft", 99, "llama_host", 0.3)])


STREAMS, STREAM_TOKENS = 8, 1000  # of mixed; clients hang up once the long prompt has its first token


def default_target_itl(binaries):
    """Seconds, as the engine itself names it."""
    said = subprocess.run([binaries / "swiftcache-engine", "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return go_duration(re.search(r"--target_itl=(\S+)", said)[1])


def streams_and_a_prompt(bench, side, number):
    """The gaps of each stream while the prompt's first token is awaited, and all gaps of before."""
    begun, enough = threading.Semaphore(0), threading.Event()
    streams = [bench.pool.submit(side.ask, [{"role": "user", "content": words(random.Random(f"{number}/{i}"), 60)}], STREAM_TOKENS,
                                 began=begun.release, enough=enough, every_token=True) for i in range(STREAMS)]
    for _ in streams:
        if not begun.acquire(timeout=60):
            sys.exit(f"serving: not all of {side.name}'s {STREAMS} streams have begun after a minute")
    time.sleep(1)
    arrived = time.monotonic()
    prompt = side.ask([{"role": "user", "content": words(random.Random(f"{number}/long"), 4060)}], 2)
    ended = arrived + prompt.ttft
    enough.set()
    tokens = [stream.result().at for stream in streams]
    if short := sum(at[-1] < ended for at in tokens):
        sys.exit(f"serving: {short} of {side.name}'s {STREAMS} streams ended before the long prompt's first token, so that gaps beside "
                 f"it are missing; they need more than STREAM_TOKENS")
    gaps = [list(zip(at, at[1:])) for at in tokens]
    beside = [[b - a for a, b in pairs if b > arrived and a < ended] for pairs in gaps]
    print(f"{side.name}: first token of the prompt of {prompt.prompt_tokens} after {prompt.ttft:.2f} s; longest gap "
          f"{max(map(max, beside)) * 1e3:.0f} ms; gaps of a stream beside it {min(map(len, beside))} to {max(map(len, beside))}",
          flush=True)
    return beside, [b - a for pairs in gaps for a, b in pairs if b < arrived]


def mixed(bench):
    bench.slot_tokens = 6144
    sides = [bench.add(Ours(bench, "ours", 16 * SLOT)), bench.add(Llama(bench, "llama", STREAMS + 1))]
    longest = {side.name: [] for side in sides}  # of all streams of a round
    quiet = {side.name: [] for side in sides}
    for number in range(bench.args.rounds):
        for side in bench.rng.sample(sides, 2):
            beside, before = streams_and_a_prompt(bench, side, number)
            longest[side.name].append(max(map(max, beside)))
            quiet[side.name] += before
    for name, values in longest.items():
        print(f"{name}: gaps before the prompt arrives p50 {percentile(quiet[name], 50) * 1e3:.1f} ms; a round's longest beside it "
              f"median {statistics.median(values) * 1e3:.0f}, largest {max(values) * 1e3:.0f} ms")
    target, ours = default_target_itl(bench.binaries), statistics.median(longest["ours"])
    print(f"largest gap of ours / --target_itl: {max(longest['ours']) / target:.4g}")
    bench.asked("longest gap of a round of ours / --target_itl, median", ours / target, 1.5)
    bench.asked("longest gap of a round of ours / of llama-server, medians", ours / statistics.median(longest["llama"]), 1.0)


def two(bench):
    bench.slot_tokens = 4096
    for make in (lambda: Ours(bench, "ours", 4 * SLOT, donors=(4 * SLOT,)), lambda: TwoLlamas(bench, "llama"),
                 lambda: TwoLlamas(bench, "llama_passive", {"OMP_WAIT_POLICY": "passive"})):
        side = bench.add(make())
        alone, beside = [], []
        for number in range(bench.args.rounds):
            alone += a_request_a_second(bench, side, f"{number}/alone")
            ending = threading.Event()
            busy = bench.pool.submit(endless_prompts, side, ending, number)
            time.sleep(1)
            beside += a_request_a_second(bench, side, f"{number}/beside")
            ending.set()
            busy.result()
        tpot = [percentile([a.tpot for a in answers], 50) for answers in (alone, beside)]
        ttft = [percentile([a.ttft for a in answers], 50) for answers in (alone, beside)]
        print(f"{side.name:16}alone TPOT {tpot[0] * 1e3:.1f} ms, TTFT {ttft[0] * 1e3:.0f}; beside the other TPOT {tpot[1] * 1e3:.1f}, "
              f"TTFT {ttft[1] * 1e3:.0f}: {tpot[1] / tpot[0]:.2f} and {ttft[1] / ttft[0]:.2f} times", flush=True)
        if side.name == "ours":
            bench.asked("TPOT beside a busy neighbour / alone", tpot[1] / tpot[0], 2.2)
            bench.asked("TTFT beside a busy neighbour / alone", ttft[1] / ttft[0], 3)
        bench.stop_all()


def a_request_a_second(bench, side, key, seconds=10):
    futures = []
    for second in range(seconds):
        begun = time.monotonic()
        text = words(random.Random(f"{key}/{second}"), 70)
        futures.append(bench.pool.submit(side.ask, [{"role": "user", "content": text}], 32))
        time.sleep(max(0.0, begun + 1 - time.monotonic()))
    return [future.result() for future in futures]


def endless_prompts(side, ending, number):
    count = 0
    while not ending.is_set():
        side.ask([{"role": "user", "content": words(random.Random(f"{number}/{count}/busy"), 2960)}], 1, "donor0")
        count += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("turns", "arrivals", "third", "mixed", "two"))
    parser.add_argument("--bin", default=ROOT / "build/release/bin", help="folder of our binaries")
    add_llama_flag(parser)
    parser.add_argument("--vllm", type=pathlib.Path, default=CACHE / "vllm-0.32.0", help="Python environment that has vLLM")
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--samples", type=int, default=300, help="turns of each side, in turns, arrivals and third")
    parser.add_argument("--rounds", type=int, default=3, help="of mixed and two")
    parser.add_argument("--threads", type=int, default=0, help="of our engines; 0: they share the cores")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if missing := llama_missing(args):
        sys.exit(f"serving: {missing}")
    if args.what in ("turns", "arrivals") and not args.vllm.exists():
        print(f"without vLLM: no {args.vllm}; tests/bench/vllm.sh installs it")
    with ServingBench(args) as bench:
        {"turns": turns, "arrivals": arrivals, "third": third, "mixed": mixed, "two": two}[args.what](bench)
    sys.exit(1 if bench.missed else 0)


main()
