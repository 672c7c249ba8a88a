#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What leases cost who lends: real processes, a real model, each figure beside its bound or its peer.

  tests/bench/donors.py reclaim         how soon a donor in need has its memory: while it decodes, while its borrower computes
  tests/bench/donors.py interference    its TTFT and TPOT while its borrower reads, writes, and has leases taken from it
  tests/bench/donors.py pauses          two chat engines that pause in turn: what each computes again, and its first tokens after a pause
  tests/bench/donors.py guard           interference, short, with bounds that a busy machine keeps and broken leases do not: for CI
  tests/bench/donors.py lend            a loan of 1 GiB: what its donor feels of it, and of the scrub

Needs the binaries (--bin) and the model of deploy/fetch-model.sh (--model); run it with the Python of tests/run.sh
(~/.cache/swiftcache/test-venv/bin/python) on a machine that does nothing else. Sides of a comparison are interleaved:
ratios hold on a noisy machine, absolute times do not. Ends with 1 if a figure misses what was asked of it.
"""
import concurrent.futures
import itertools
import random
import re
import statistics
import time

from sides import (TOKEN_BYTES, Asker, Conversations, Revoker, arguments, beside, cluster_ratio_interval, go_duration,
                   interval, percentile, random_tokens, ratio_interval, run)

from leasing import NEED_MET, NEED_OVER  # of tests/e2e, which sides puts on the path

BLOCK_TOKENS = 16


def reclaim(bench):
    """A donor's prompt needs back what it has lent, and is cancelled once all of that is there: from the need to its
    return, and from then to the end of the step after which its loop takes it, as its log tells. All flags of the engines
    have their defaults."""
    own, lends, prompt, need = 256, 1536, 1100, 1400  # tokens
    least = prompt // BLOCK_TOKENS // 2  # blocks
    side = bench.side("reclaim", own, (lends,), window="100ms")  # soon it lends again
    donor, name, pool = side.donors[0], "donor0", concurrent.futures.ThreadPoolExecutor()
    for case in ("the donor decodes for another client", "its borrower is in the midst of a step"):
        times, until_taken, blocks, given_up = [], [], [], 0
        for _ in range(3 * bench.args.rounds):
            if len(times) == bench.args.rounds:
                break
            words = bench.tokens(prompt)
            side.ask(words, 1)
            lent, seen = int(donor.metric("swiftcache_kv_blocks", state="leased_out")), len(donor.text())
            if lent < least:
                continue
            if case.startswith("the donor"):
                other = pool.submit(side.ask, bench.tokens(16), 40, name)
            else:
                other = pool.submit(side.ask, words + bench.tokens(64), 1)
            time.sleep(bench.rng.uniform(0.02, 0.08))
            call, patience = side.begin(bench.tokens(need), 1, name), time.monotonic() + 20
            back = gone = None
            while not (back or gone) and time.monotonic() < patience:
                time.sleep(0.005)
                log = donor.text()[seen:]
                back, gone = re.search(NEED_MET, log), re.search(NEED_OVER, log)
            call.cancel()
            other.result()
            assert back or gone, f"what was needed did not come back in 20 s:\n{log}"
            if not back:  # another request has ended meanwhile, say
                given_up += 1
                continue
            times.append(go_duration(back[1]))
            blocks.append(int(back[2]))
            until_taken.append(go_duration(back[3]))
        bench.asked(f"needs while {case}", len(times), bench.args.rounds, least=True)
        print(f"        of {statistics.median(blocks):.0f} blocks of 16 tokens (median), all of which are back: median "
              f"{statistics.median(times) * 1e3:.2f} ms, p90 {percentile(times, 90) * 1e3:.2f} ms, longest {max(times) * 1e3:.2f} ms; "
              f"taken {statistics.median(until_taken) * 1e3:.2f} ms later, p99 {percentile(until_taken, 99) * 1e3:.2f} ms; "
              f"{given_up} more ended before")
        bench.asked("the smallest need, blocks", min(blocks), least, least=True)
        bench.asked("p99, ms (the deadline)", percentile(times, 99) * 1e3, 50)
    bench.asked("late ones", int(donor.metric("swiftcache_lease_late_total")), 0)


class Borrowing:
    """Six conversations with the chat engine that grow from 400 to 1,000 tokens, and begin anew."""

    def __init__(self, side):
        self.side, self.rng = side, random.Random(1)
        self.prompts = [random_tokens(self.rng, 400) for _ in range(6)]

    def ask(self, ending):
        """Turn after turn; how many were answered."""
        turn = 0
        while not ending.is_set():
            i = turn % len(self.prompts)
            grown = self.prompts[i] + random_tokens(self.rng, 32)
            self.prompts[i] = grown if len(grown) < 1000 else random_tokens(self.rng, 400)
            self.side.ask(self.prompts[i], 16)
            turn += 1
        return turn


LEAST_ASKED = 2  # requests to the borrower in a window: one may be its last alone
MOST_ANSWERS = 60  # of the donor in a window, however long no lease is taken back


def slow_downs(bench, rounds):
    """The ratios of TTFT and of TPOT of pairs of windows: the donor beside a borrower whose conversations grow in its leases,
    which are taken back one by one and made anew, and beside the same borrower with all memory local."""
    leased = bench.side("leased", 1024, (8192,), ("--stream=in_place",))
    local = bench.side("local", 9216, (8192,), ("--transport=none",), ("--transport=none",))
    load = {side.name: Borrowing(side) for side in (leased, local)}
    revoker = Revoker(bench, leased, (0.3, 1.0))
    ratios, asked = {"TTFT": [], "TPOT": []}, {side.name: [] for side in (leased, local)}
    for _ in range(rounds):
        seen = {}
        for side in bench.rng.sample((leased, local), 2):
            with beside(load[side.name].ask) as borrower:
                time.sleep(0.5)
                prompts = [bench.tokens(128) for _ in range(6)]
                if side is leased:
                    taken = len(revoker.revoked)
                    with revoker:
                        answers = [side.ask(prompt, 24, model="donor0") for prompt in prompts]
                        while len(revoker.revoked) == taken and len(answers) < MOST_ANSWERS:
                            answers.append(side.ask(bench.tokens(128), 24, model="donor0"))
                else:
                    answers = [side.ask(prompt, 24, model="donor0") for prompt in prompts]
            asked[side.name].append(borrower.result())
            seen[side.name] = (statistics.median(a.ttft for a in answers), statistics.median(a.tpot for a in answers))
        for i, name in enumerate(ratios):
            ratios[name].append(seen["leased"][i] / seen["local"][i])
    donor = leased.donors[0]
    print(f"leases made: {leased.chat.metric('swiftcache_lease_borrowed_total'):.0f}, taken back while it was measured: {len(revoker.revoked)}; "
          f"blocks lent at the end: {donor.metric('swiftcache_kv_blocks', state='leased_out'):.0f}; prompt tokens found in leases: "
          f"{leased.chat.metric('swiftcache_prompt_tokens_by_source_total', source='donor'):.0f}")
    bench.asked("leases taken back", len(revoker.revoked), rounds, least=True)
    for name, counts in asked.items():
        print(f"requests to the borrower of {name} in each window: {' '.join(map(str, counts))}")
        bench.asked(f"requests to the borrower of {name} in a window, the fewest", min(counts), LEAST_ASKED, least=True)
    return ratios


def interference(bench):
    for name, values in slow_downs(bench, bench.args.rounds).items():
        low, high = interval(values, bench.rng)
        print(f"donor's {name} beside leases / beside the same borrower with local memory: median "
              f"{statistics.median(values):.3f}, 95 % interval {low:.3f} to {high:.3f} (width {high - low:.3f}), {len(values)} pairs")
        bench.asked(f"upper end of the slow-down of {name}", high - 1, {"TTFT": 0.05, "TPOT": 0.03}[name])


PAUSING = ("donor0", "chat")


class Turns:
    """What two engines computed of their conversations' turns, on each side."""

    WAKING = 8  # prompts of a phase, the first ones, whose first tokens count

    def __init__(self, bench, sides, talking):
        self.bench, self.sides = bench, sides
        self.talks = {name: Conversations(bench, active=count) for name, count in talking.items()}
        self.again, self.computed = ({side.name: dict.fromkeys(PAUSING, 0) for side in sides} for _ in range(2))
        self.waking = {name: [] for name in PAUSING}  # prompts: {side: TTFT}

    def phase(self, name, seconds, counts=True):
        """This engine is asked for its next turns; each prompt by one side after the other."""
        talks, begun, number = self.talks[name], time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            slot, talk = talks.next()
            prompt = talk["prompt"]
            known = (len(prompt) - talks.TURN - 1) // BLOCK_TOKENS * BLOCK_TOKENS if talk["turn"] > 1 else 0
            answers = {side.name: side.ask(prompt, talks.ANSWER, name) for side in self.bench.rng.sample(self.sides, len(self.sides))}
            if counts:
                self._count(name, answers, len(prompt) - known)
            if counts and number < self.WAKING and talk["turn"] > 1:
                self.waking[name].append({side: answer.ttft for side, answer in answers.items()})
            talks.answered(slot, answers["alone"].ids)
            number += 1

    def _count(self, name, answers, new):
        for side, answer in answers.items():
            self.computed[side][name] += answer.computed
            self.again[side][name] += max(0, answer.computed - new)


def pauses(bench):
    """As long as one of two engines is asked the other pauses, and lends what it does not expect to want again. One computes
    hardly anything again, since its memory suffices for all conversations, or both compute most of them again."""
    own, window = 4096, f"{bench.args.phase / 2:g}s"  # a cache is kept for sixteen of them
    for case, talking in (("one has memory enough", {"donor0": 3, "chat": 10}), ("neither has", {"donor0": 10, "chat": 10})):
        alone = ("--transport=none",)
        sides = [bench.side("shares", own, (own,), window=window), bench.side("alone", own, (own,), alone, alone, window=window)]
        turns = Turns(bench, sides, talking)
        for number in range(2 * (1 + bench.args.rounds)):
            turns.phase(PAUSING[number % 2], bench.args.phase, counts=number > 1)
        print(f"\n{case}: conversations {talking}, {own} tokens of memory each, window {window}, pauses of {bench.args.phase:g} s")
        judge_pauses(bench, sides[0], turns)
        bench.stop_all()


def judge_pauses(bench, shares, turns):
    print(f"{'engine':10}{'computed alone':>16}{'again, alone':>14}{'again, shares':>15}{'waking':>8}{'p99 / alone':>13}")
    for name in PAUSING:
        again, alone = turns.again["shares"][name], turns.again["alone"][name]
        computed = turns.computed["alone"][name]
        first = {side: [answers[side] for answers in turns.waking[name]] for side in turns.again}
        p99 = percentile(first["shares"], 99) / percentile(first["alone"], 99)
        low, high = ratio_interval(first["shares"], first["alone"], 99, bench.rng)
        print(f"{name:10}{computed:16}{alone:14}{again:15}{len(first['alone']):8}{p99:13.3f} ({low:.3f} to {high:.3f})")
        bench.asked(f"{name}: tokens computed again (1.1 of those alone, and 3 % of all)", again, round(1.1 * alone + 0.03 * computed))
        bench.asked(f"{name}: p99 of first tokens after a pause / alone", p99, 1.1)
    again = {side: sum(values.values()) for side, values in turns.again.items()}
    bench.asked("tokens that both computed again / alone", again["shares"] / again["alone"], 1.1)
    borrowed = sum(int(engine.metric("swiftcache_lease_borrowed_total")) for engine in (shares.chat, *shares.donors))
    bench.asked("leases", borrowed, 1, least=True)


def guard(bench):
    for name, values in slow_downs(bench, 5).items():
        bench.asked(f"slow-down of a donor's {name}, median", statistics.median(values) - 1, 0.3)


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
    loans, granted, outlasted = [], [], 0  # of each loan: (gap while it lends, gap without)
    while sum(map(len, loans)) < bench.args.gaps:
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
        loans.append([(b - a, d - c) for (a, b), (c, d) in zip(answers[True].gaps, answers[False].gaps)
                      if b > begun and a < begun + seconds])
    lending, quiet = zip(*itertools.chain.from_iterable(loans))
    p99 = percentile(lending, 99) / percentile(quiet, 99)
    low, high = cluster_ratio_interval(loans, 99, bench.rng)
    dirt = f"after {bench.args.dirty} tokens held each" if bench.args.dirty else "of memory as it came back"
    print(f"\n{len(granted)} loans of {want / 2**30:.2g} GiB {dirt}; granted after {statistics.median(granted):.2f} s (median); "
          f"{outlasted} of them outlasted the answer")
    print(f"gaps between the donor's tokens, ms{'gaps':>7}{'p50':>8}{'p90':>8}{'p99':>8}{'longest':>9}")
    for name, gaps in (("while it lends", lending), ("without", quiet)):
        p50, p90, most = (percentile(gaps, p) * 1e3 for p in (50, 90, 99))
        print(f"  {name:33}{len(gaps):7}{p50:8.2f}{p90:8.2f}{most:8.2f}{max(gaps) * 1e3:9.2f}")
    print(f"p99 of the gaps while {want / 2**30:.2g} GiB is lent / without: {p99:.3f}, 95 % interval {low:.3f} to {high:.3f}, of whole loans")
    bench.asked("its upper end", high, 1.1)


def main():
    parser = arguments(__doc__, ["reclaim", "interference", "pauses", "lend", "guard"])
    parser.add_argument("--rounds", type=int, help="of reclaim 200 by default, else 20")
    parser.add_argument("--phase", type=float, default=6, help="pauses: seconds for which an engine is asked while the other pauses")
    parser.add_argument("--gaps", type=int, default=1000, help="lend: so many, or a few more, while it lends, and as many without")
    parser.add_argument("--dirty", type=int, default=0, help="lend: tokens that the donor holds before each loan; 46000 write nearly all of it")
    args = parser.parse_args()
    args.rounds = args.rounds or (200 if args.what == "reclaim" else 20)
    run(globals()[args.what], args)


if __name__ == "__main__":
    main()
