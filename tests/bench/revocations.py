#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How soon the memory of a revoked lease is back: from the donor's revocation to the message that its loop takes it back
by, as its log tells. Leases are revoked one at a time, at random moments, by the broker; all flags have their defaults.

  tests/bench/revocations.py unread    no step reads them: the borrower prefills 8,000 tokens in its own memory
  tests/bench/revocations.py read      the borrower's prompt is seven times its own memory, and every step reads them

Needs the binaries (--bin) and the model of deploy/fetch-model.sh (--model); run it with the Python of tests/run.sh
(~/.cache/swiftcache/test-venv/bin/python) on a machine that does nothing else. Ends with 1 if a figure misses what was
asked of it.
"""
import re
import statistics

import grpc
from sides import Revoker, arguments, percentile, run


def count(processes, name):
    return sum(int(process.metric(name)) for process in processes)


def show(bench, side, what, times):
    fenced, late = (count(side.donors, f"swiftcache_lease_{name}_total") for name in ("fenced", "late"))
    unread, lost = (count([side.chat], f"swiftcache_lease_{name}_total") for name in ("unread", "lost"))
    print(f"{what}: {len(times)} revoked: median {statistics.median(times) * 1e3:.2f} ms, p90 {percentile(times, 90) * 1e3:.2f}, "
          f"p99 {percentile(times, 99) * 1e3:.2f}, longest {max(times) * 1e3:.2f}; {fenced} fenced; the borrower gave back "
          f"{unread} unread and lost {lost}")
    bench.asked("late ones", late, 0)


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
    show(bench, side, f"a borrower prefills {prompt} tokens in {own} of its own memory", times)
    bench.asked("median, ms", statistics.median(times) * 1e3, 1)
    bench.asked("p99, ms", percentile(times, 99) * 1e3, 3)


def read(bench):
    own = 1024
    side = bench.side("read", own, (8 * own, 8 * own), window="100ms")
    revoker, served, refused = Revoker(bench, side, bench.args.every), 0, 0
    with revoker:
        while len(revoker.times()) < bench.args.samples:
            try:
                side.ask(bench.tokens(7 * own), 32)
                served += 1
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.OUT_OF_RANGE, error
                refused += 1
                print(error.details())
    show(bench, side, f"a prompt of {7 * own} tokens behind {own} of own memory", revoker.times())
    print(f"requests: {served} served, {refused} refused")
    resets = {lease: int(n) for lease, n in re.findall(r"lease (\d+) is out of use .* after (\d+) resets", side.chat.text())}
    costly = sum(resets.get(lease, 0) > 0 for lease in revoker.revoked)
    bench.asked(f"of {len(revoker.revoked)} revocations, the share that set a request back", costly / len(revoker.revoked), 0.05)


def main():
    parser = arguments(__doc__, ["unread", "read"])
    parser.add_argument("--every", type=lambda s: [float(v) for v in s.split(",")], default=[0.1, 0.3],
                        help="seconds between two revocations, at least and at most")
    args = parser.parse_args()
    run(globals()[args.what], args)


if __name__ == "__main__":
    main()
