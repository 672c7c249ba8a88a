#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which system calls the step loop's thread makes: 64 streams, 10,000 steps, counted by strace.

  tests/bench/loop_syscalls.py

Needs strace, the binaries (--bin) and the Python of tests/run.sh (~/.cache/swiftcache/test-venv/bin/python). Prints calls
per step by name, and ends with 1 if the loop's thread made others than those with which threads wake each other and wait for
locks or work, and those of a heap that grows.
"""
import argparse
import collections
import concurrent.futures
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading

import grpc
import sides  # noqa: F401: puts tests/e2e on the path

from conftest import ROOT, TINY, Cluster, python_stubs, wait_until

LOCKS = {"futex WAKE", "futex WAIT", "sched_yield", "clock_nanosleep"}  # wakes, and how absl::Mutex waits
HEAP = {"mprotect", "madvise", "brk", "mmap", "munmap"}
STREAMS = 64


class Reader:
    """Streams of one engine, each begun anew when it ends, until it is told to stop."""

    def __init__(self, engine, stubs, tokens):
        self.pb, self.rpc = stubs
        self.tokens, self.ending = tokens, threading.Event()
        self.channel = grpc.insecure_channel(engine.grpc)
        self.pool = concurrent.futures.ThreadPoolExecutor(STREAMS)
        self.streams = [self.pool.submit(self._run, i) for i in range(STREAMS)]

    def _run(self, stream):
        stub, turn = self.rpc.EngineServiceStub(self.channel), 0
        while not self.ending.is_set():
            request = self.pb.EngineGenerateRequest(
                request_id=f"{stream}-{turn}", token_ids=[5 + stream, 9, 11],
                sampling={"temperature": 0, "max_tokens": self.tokens, "ignore_eos": True})
            call = stub.Generate(request)
            for _ in call:
                pass
            turn += 1

    def stop(self):
        self.ending.set()
        for stream in self.streams:
            stream.result(60)
        self.channel.close()


def threads(pid):
    """{thread id: name}"""
    return {int(task.name): (task / "comm").read_text().strip() for task in pathlib.Path(f"/proc/{pid}/task").iterdir()}


def loop_thread(pid, name):
    """Of that name; in a build without names, that which computed most."""
    named = [tid for tid, comm in threads(pid).items() if comm == name]
    if named:
        return named[0]
    spent = {tid: int(pathlib.Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[0]) for tid in threads(pid)}
    return max(spent, key=spent.get)


def count(engine, tid, steps):
    """({call: times}, steps, tokens) of one thread over at least so many steps; of futex, wake and wait apart."""
    calls, others = collections.Counter(), []
    strace = subprocess.Popen(["strace", "-qq", "-p", str(tid)], stderr=subprocess.PIPE, text=True)

    def read():
        for line in strace.stderr:
            if found := re.match(r"([a-z_0-9]+)\((?:0x[0-9a-f]+, FUTEX_(WAIT|WAKE))?", line):
                calls[" ".join(filter(None, found.groups()))] += 1
            else:
                others.append(line)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            begin = made(engine)
            wait_until(lambda: strace.poll() is not None or made(engine)[0] - begin[0] >= steps, 900, f"{steps} steps")
            end = made(engine)
        finally:
            strace.send_signal(signal.SIGINT)
            code = strace.wait(60)
        reader.result()
    if code not in (0, -signal.SIGINT) or not calls:  # a thread that makes no call wakes nobody
        sys.exit(f"loop_syscalls: strace saw {sum(calls.values())} calls and ended with {code}: {''.join(others[-3:]).strip()}")
    return calls, end[0] - begin[0], end[1] - begin[1]


def made(engine):
    """(steps, tokens) since the start."""
    return engine.metric("swiftcache_steps_total"), engine.metric("swiftcache_generation_tokens_total")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--warm_up", type=int, default=5_000, help="steps before the first that counts")
    parser.add_argument("--tokens", type=int, default=1900, help="of a stream, before it begins anew")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "stubs").mkdir()
        python_stubs(folder / "stubs")
        from swiftcache.v1 import engine_pb2, engine_pb2_grpc
        cluster = Cluster((ROOT / options.bin).resolve(), folder)
        try:
            cluster.start_broker()
            engine = cluster.start_engine(TINY / "tiny-llama-a", "tiny", f"--max_num_seqs={STREAMS}", "--kv_cache_bytes=256MiB")
            reader = Reader(engine, (engine_pb2, engine_pb2_grpc), options.tokens)
            wait_until(lambda: engine.metric("swiftcache_running_requests") == STREAMS, 60, "all streams run")
            wait_until(lambda: made(engine)[0] >= options.warm_up, 600, "it is warm")
            tid = loop_thread(engine.child.pid, "step loop")
            calls, steps, tokens = count(engine, tid, options.steps)
            reader.stop()
        finally:
            cluster.cleanup()
    print(f"{STREAMS} streams of {options.tokens} tokens, {steps:.0f} steps of {tokens / steps:.1f} on average; "
          "calls of the loop's thread, and per step:")
    for name, times in calls.most_common():
        print(f"  {name:<20}{times:>10}{times / steps:>12.4f}")
    others = set(calls) - LOCKS - HEAP
    print(f"beside locks and heap: {', '.join(sorted(others)) or 'none'}")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
