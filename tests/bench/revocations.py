#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How soon the memory of a revoked lease is back: from the donor's revocation to the message that its loop takes it back
by, as its log tells. Leases are revoked one at a time, at random moments, by the broker; all flags have their defaults.

  tests/bench/revocations.py unread    no step reads them: the borrower prefills 8,000 tokens in its own memory (of some
                                       blocks move into a lease all the same; these are told apart)
  tests/bench/revocations.py read      the borrower's prompt is seven times its own memory, and every step reads them
  tests/bench/revocations.py turns     the borrower answers turns of conversations beside busy donors: what of them is
                                       computed again, and first tokens beside the same turns' with all memory local
  tests/bench/revocations.py adverse   tiny engines as in tests/e2e: nobody reads any log; the borrower stands still
                                       (SIGSTOP); the donor needs the memory, and the broker answers after a second.
                                       Asked is that none is late, by the donor's count, and that no need waits for the
                                       broker

Needs the binaries (--bin) and the model of deploy/fetch-model.sh (--model); run it with the Python of tests/run.sh
(~/.cache/swiftcache/test-venv/bin/python) on a machine that does nothing else. Ends with 1 if a figure misses what was
asked of it.
"""
import asyncio
import collections
import concurrent.futures
import contextlib
import pathlib
import re
import signal
import statistics
import tempfile
import time

import grpc
from leases import ALONE, OWN, WARM_UP, Load, borrowing_sides, fill, first_tokens, print_revoked, take_turns
from sides import Conversations, Revoker, arguments, beside, percentile, run

from conftest import wait_until  # of tests/e2e, which sides puts on the path
from leasing import ARENA, BOUND, DONOR, PATIENT, WAIT, Client, Leasing, Talks, alone, half_lent_to, hits, needs_met, storm
from unread_log_test import REQUESTS, ask_often, unread_pipe


def count(processes, name):
    return sum(int(process.metric(name)) for process in processes)


def show(bench, side, what, times):
    fenced, late = (count(side.donors, f"swiftcache_lease_{name}_total") for name in ("fenced", "late"))
    unread, lost = (count([side.chat], f"swiftcache_lease_{name}_total") for name in ("unread", "lost"))
    print(f"{what}: {len(times)} revoked: median {statistics.median(times) * 1e3:.2f} ms, p90 {percentile(times, 90) * 1e3:.2f}, "
          f"p99 {percentile(times, 99) * 1e3:.2f}, longest {max(times) * 1e3:.2f}; {fenced} fenced; the borrower gave back "
          f"{unread} unread and lost {lost}")
    bench.asked("late ones", late, 0)


def blocks_in_use(side):
    """Of a running request, by lease, when it was drained."""
    said = re.findall(r"lease (\d+) is drained: (\d+) of its blocks are in use", side.chat.text())
    return {lease: int(blocks) for lease, blocks in said}


def unread(bench):
    own, prompt = 8192, 8000
    side = bench.side("unread", own, (4 * own, 4 * own), window="100ms")
    revoker = Revoker(bench, side, bench.args.every)
    while len(revoker.times()) < bench.args.samples:
        while side.chat.metric("swiftcache_kv_blocks", state="leased_in") < own // 16:
            side.ask(bench.tokens(own // 2), 1)  # pushes what was there before into leases
        with revoker:
            side.ask(bench.tokens(prompt), 1)
    times = revoker.times()
    read = {lease for lease, blocks in blocks_in_use(side).items() if blocks > 0} & times.keys()
    show(bench, side, f"a borrower prefills {prompt} tokens in {own} of its own memory", list(times.values()))
    print(f"{len(read)} of them had blocks of the prompt itself: median {statistics.median(times[l] for l in read) * 1e3:.2f} ms"
          if read else "none of them had blocks of the prompt itself")
    unread = [seconds for lease, seconds in times.items() if lease not in read]
    bench.asked(f"of the {len(unread)} others, median, ms", statistics.median(unread) * 1e3, 1)
    bench.asked(f"of the {len(unread)} others, p99, ms", percentile(unread, 99) * 1e3, 3)
    bench.asked("the share of the others", len(unread) / len(times), 0.9, least=True)


def read(bench):
    own = 1024
    side = bench.side("read", own, (8 * own, 8 * own), window="100ms")
    revoker, served, refused = Revoker(bench, side, bench.args.every), 0, 0
    with revoker, concurrent.futures.ThreadPoolExecutor(1) as reader:
        while len(revoker.times()) < bench.args.samples:
            call = side.begin(bench.tokens(7 * own), 32, "chat")
            answer = reader.submit(collections.deque, call, 0)  # reads it to its end
            while not answer.done() and len(revoker.times()) < bench.args.samples:
                time.sleep(0.2)
            call.cancel()
            error = answer.exception()
            if error is None:
                served += 1
            elif error.code() is not grpc.StatusCode.CANCELLED:
                assert error.code() is grpc.StatusCode.OUT_OF_RANGE, error
                refused += 1
                print(error.details())
    show(bench, side, f"a prompt of {7 * own} tokens behind {own} of own memory", list(revoker.times().values()))
    print(f"requests: {served} served, {refused} refused")
    log = side.chat.text()
    in_use = blocks_in_use(side)
    resets = {lease: int(n) for lease, n in re.findall(r"lease (\d+) is out of use .* after (\d+) resets", log)}
    costly = {lease for lease in revoker.revoked if resets.get(lease, 0) > 0}
    could = {lease for lease in revoker.revoked if in_use.get(lease, 0) > 0} | costly  # a lost one need not drain
    print(f"{len(revoker.revoked)} leases revoked (of {len(revoker.tried)} that were to be), {len(could)} with blocks in use")
    bench.asked("revocations of leases with blocks in use", len(could), 1, least=True)
    bench.asked(f"of these {len(could)}, the share that set a request back", len(costly) / max(1, len(could)), 0.05)


class Taken(Load):
    """Short prompts to the neighbours, while leases of theirs are taken back."""

    LONG_EVERY = 10**9  # turns: none comes

    def __init__(self, home, revokers):
        super().__init__(home)
        self.revokers = revokers

    @contextlib.contextmanager
    def beside(self, side):
        with super().beside(side), self.revokers.get(side.name, contextlib.nullcontext()):
            yield


def turns(bench):
    bench.args.threads = 0  # as in leases.py ttft
    lent = 2 * (4 * OWN,)
    borrowers = borrowing_sides(bench, lent)
    local = bench.side("all_local", OWN + sum(lent), lent, **ALONE)
    for side in borrowers:
        fill(bench, side, lent)
    revokers = {side.name: Revoker(bench, side, bench.args.every) for side in borrowers}
    talks, sides = Conversations(bench, active=8), [*borrowers, local]
    take_turns(bench, talks, sides, WARM_UP, Taken(local, {}).beside)
    requests = take_turns(bench, talks, sides, bench.args.samples, Taken(local, revokers).beside)
    for name, times in first_tokens(requests).items():
        print(f"{name}: first tokens p50 {percentile(times, 50) * 1e3:.1f} ms, p90 {percentile(times, 90) * 1e3:.1f}, p99 {percentile(times, 99) * 1e3:.1f}, "
              f"mean {statistics.mean(times) * 1e3:.1f}; {sum(answers[name].computed for answers in requests)} tokens computed")
    for side in borrowers:
        again = sum(answers[side.name].computed > answers["all_local"].computed for answers in requests)
        show(bench, side, side.name, list(revokers[side.name].times().values()))
        bench.asked(f"turns of {side.name} that computed something again, of all {len(requests)}", again / len(requests), 0.05)
    print_revoked(bench, requests)


def taken_back(leasing):
    return leasing.count("donor", "swiftcache_reclaim_seconds_count")


def none_is_late(bench, what, leasing):
    fenced, late = (leasing.count("donor", f"swiftcache_lease_{name}_total") for name in ("fenced", "late"))
    in_time = {ms: leasing.count("donor", "swiftcache_reclaim_seconds_bucket", le=f"{ms / 1e3:g}") for ms in (10, 30, 50)}
    print(f"{what}: {taken_back(leasing):.0f} taken back, {fenced:.0f} of them fenced; "
          + ", ".join(f"{count:.0f} within {ms} ms" for ms, count in in_time.items()))
    bench.asked(f"{what}: late ones", late, 0)


def unread_log(bench, leasing, talks):
    stubs = bench.pb, bench.rpc
    with unread_pipe() as (_, leasing.stderr):
        leasing.begin()
        leasing.engine("donor", DONOR), leasing.engine("chat", ARENA)
        leasing.ready("donor", "chat")
        asyncio.run(ask_often(leasing.gateway.grpc, stubs, "chat", REQUESTS))
        assert leasing.count("chat", "swiftcache_log_lines_lost_total") > 0
        load = leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases")
        with beside(lambda ending: storm(leasing, bench.args.seed, ending, [])):
            load.until(lambda: taken_back(leasing) >= bench.args.samples, "enough revocations", WAIT + bench.args.samples)
        load.stop()
        none_is_late(bench, "a log that nobody reads", leasing)
        leasing.finish()


def stopped_borrower(bench, leasing, talks):
    leasing.begin(PATIENT)
    leasing.engine("donor", DONOR)
    chat = leasing.engine("chat", ARENA)
    load = leasing.ready("chat").load((bench.pb, bench.rpc), talks, "chat")
    while taken_back(leasing) < bench.args.samples:
        load.until(hits(leasing, "chat"), "hits in leases").until(lambda: len(leasing.leases()) > 1, "several leases")
        chat.child.send_signal(signal.SIGSTOP)
        revoked = set(leasing.granted())
        for lease in revoked:
            leasing.ctl("lease", "revoke", lease, check=False)  # it may have ended meanwhile
        wait_until(lambda: not revoked & {lease[0] for lease in leasing.leases()}, WAIT, "what was revoked is back")
        chat.child.send_signal(signal.SIGCONT)
    load.stop()
    none_is_late(bench, "a borrower that stands still", leasing)
    leasing.finish()


def slow_broker(bench, leasing, talks):
    leasing.begin()
    donor = leasing.engine("donor", "--kv_cache_bytes=2MiB", leasing.wire())
    leasing.ready("donor")
    for name in ("chat", "chat2"):
        leasing.engine(name, ARENA)
    load = leasing.ready("chat", "chat2").load((bench.pb, bench.rpc), talks, "chat", "chat2", clients=1)
    client, needs = Client(leasing.gateway.grpc, (bench.pb, bench.rpc)), 0
    while taken_back(leasing) < bench.args.samples:
        load.until(half_lent_to(leasing, "chat", "chat2"), "it lends to both, and nearly half of what it has", BOUND)
        leasing.wires[0].answers_after = 1
        client.ask("donor", talks.long_prompt[:1500], talks.answer_tokens, salt=f"{needs}")  # three quarters of its arena
        leasing.wires[0].answers_after = 0
        needs += 1
    client.close()
    load.stop()
    none_is_late(bench, f"a broker that answers after a second, {needs} needs", leasing)
    times = [back for back, _ in needs_met(donor)]
    bench.asked(f"of {needs} needs, those of known time", len(times), 1 + needs // 2, least=True)  # others end as what they lack comes free
    bench.asked("the median need, ms", statistics.median(times) * 1e3, 20)
    bench.asked("the longest need, ms", max(times) * 1e3, 100)  # the deadline twice; the broker takes a second
    leasing.finish()


def adverse(bench):
    """Cases of tests/e2e, where memory may take a second, since a busy machine keeps a donor waiting. Here the deadline is
    the default one, each goes on until enough was taken back, and nothing of it is late."""
    def folder():
        return pathlib.Path(tempfile.mkdtemp(dir=bench.folder))

    with alone(bench.binaries, folder(), (bench.pb, bench.rpc), "64MiB") as client:
        talks = Talks(bench.args.seed, conversations=12, turns=4).learn(client, "chat")
    for case in (unread_log, stopped_borrower, slow_broker):
        leasing = Leasing(bench.binaries, folder())
        try:
            case(bench, leasing, talks)
        finally:
            leasing.cleanup()


def main():
    parser = arguments(__doc__, ["unread", "read", "turns", "adverse"])
    parser.add_argument("--every", type=lambda s: [float(v) for v in s.split(",")],
                        help="seconds between two revocations, at least and at most: 0.1,0.3, for turns 0.03,0.4")
    args = parser.parse_args()
    args.every = args.every or ([0.03, 0.4] if args.what == "turns" else [0.1, 0.3])
    run(globals()[args.what], args)


if __name__ == "__main__":
    main()
