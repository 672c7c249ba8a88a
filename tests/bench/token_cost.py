#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processor time of gateway and engine per token: 16 streams through the gateway, in turns where several builds are named.

  tests/bench/token_cost.py                                       build/release/bin
  tests/bench/token_cost.py --bin OLD/bin --bin build/release/bin --rounds 3

User and system time of each process (/proc/PID/stat) over the tokens that came meanwhile. The engine's has the model in it:
compare builds, or models (--model). `idle`: share of one core that broker, gateway and engine take together while nobody asks.
"""
import argparse
import concurrent.futures
import os
import pathlib
import tempfile
import time

import sides  # noqa: F401: puts tests/e2e on the path
import grpc

from conftest import ROOT, SMOLLM2, Cluster, python_stubs, wait_until


def cpu_seconds(process):
    fields = pathlib.Path(f"/proc/{process.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Load:
    """`count` endless streams; counts their tokens."""

    def __init__(self, address, stubs, count):
        self.pb, rpc = stubs
        self.channel = grpc.insecure_channel(address)
        self.stub = rpc.GenerateServiceStub(self.channel)
        self.tokens, self.ending, self.calls = [0] * count, False, [None] * count
        self.pool = concurrent.futures.ThreadPoolExecutor(count)
        self.streams = [self.pool.submit(self._run, i) for i in range(count)]

    def _run(self, i):
        while not self.ending:
            request = self.pb.GenerateRequest(model="m", token_ids=self.pb.TokenIds(ids=[5 + i, 9, 11]),
                                              sampling=self.pb.Sampling(temperature=0, max_tokens=1500, ignore_eos=True))
            self.calls[i] = self.stub.Generate(request)
            try:
                for message in self.calls[i]:
                    self.tokens[i] += len(message.token_ids)
            except grpc.RpcError:
                if not self.ending:
                    raise

    def stop(self):
        self.ending = True
        for call in self.calls:
            call.cancel()
        for stream in self.streams:
            stream.result(60)
        self.channel.close()


def spend(seconds, processes):
    """(seconds that passed, processor time of each)."""
    begin, before = time.monotonic(), [cpu_seconds(p) for p in processes]
    time.sleep(seconds)
    return time.monotonic() - begin, [cpu_seconds(p) - b for p, b in zip(processes, before)]


def measure(binaries, stubs, args):
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(binaries, pathlib.Path(folder))
        try:
            cluster.start_broker()
            cluster.start_gateway()
            engine = cluster.start_engine(args.model, "m", "--kv_cache_bytes=1GiB", f"--threads={args.threads}")
            cluster.wait_models("m")
            load = Load(cluster.gateway.grpc, stubs, args.streams)
            wait_until(lambda: all(n > 30 for n in load.tokens), 60, "all streams run")
            before = list(load.tokens)
            passed, (gateway, engine_s) = spend(args.seconds, [cluster.gateway, engine])
            of_each = [now - then for now, then in zip(load.tokens, before)]
            tokens = sum(of_each)
            load.stop()
            assert min(of_each) > 0, f"not all streams had tokens while it was measured: {of_each}"
            time.sleep(2)
            idle, shares = spend(args.idle, [cluster.broker, cluster.gateway, engine])
            begin = time.monotonic()
            gone = [f"{p.stop()} in {time.monotonic() - begin:.2f} s" for p in (cluster.gateway, engine)]
            cluster.stop()
        finally:
            cluster.cleanup()
    print(f"{binaries}: {tokens / passed:7.0f} tokens/s ({min(of_each)} or more of each stream), gateway {gateway / tokens * 1e6:6.1f} us, "
          f"engine {engine_s / tokens * 1e6:6.1f} us per token, idle {sum(shares) / idle * 100:.2f} %, ended with {gone}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", action="append", help="folder of binaries; may be given again")
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--idle", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stubs = python_stubs(pathlib.Path(folder))
        for _ in range(args.rounds):
            for binaries in args.bin or ["build/release/bin"]:
                measure((ROOT / binaries).resolve(), stubs, args)


if __name__ == "__main__":
    main()
