#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cluster under load for long: whether memory, fragmentation and latency at the end are what they were at the start.

  tests/bench/soak.py --bin build/release/bin [--seconds 3600] [--warm SECONDS] [--clients 8]

A gateway, a broker, an engine with memory for four conversations, and a neighbour to lease from; a tiny model, so that
everything beside the model is what is used. Clients hold conversations of four turns, one request behind the other,
also with the neighbour, whose own need takes leases back. After --warm seconds the time is cut into tenths.

  memory         resident, of each process, without KV memory, which comes and goes with leases: the mean of the last
                 tenth against the second, and those between
  fragmentation  mappings of each process, likewise; bytes of a lease, least in the last tenth against the second
  work           processor time of all servers for a request, the last tenth against the first
  latency        median of requests, the last tenth against the first; of use only on a machine that does nothing else

Exit code 1 where one is missed.
"""
import argparse
import asyncio
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import grpc  # noqa: E402
from conftest import TINY, Cluster, python_stubs  # noqa: E402

TENTHS = 10
TURNS, USER_TOKENS, ANSWER_TOKENS = 4, 32, 12
MODEL = TINY / "tiny-llama-a"


class Clients:
    """`latencies`: of each tenth, of each request that was answered."""

    def __init__(self, args, gateway, pb, rpc):
        self.args, self.gateway, self.pb, self.rpc = args, gateway, pb, rpc
        self.latencies = [[] for _ in range(TENTHS)]
        self.errors = 0

    def tenth(self):
        """Below 0 while it warms up."""
        return int((time.monotonic() - self.begun - self.args.warm) // (self.args.seconds / TENTHS))

    async def ask(self, stub, model, prompt):
        request = self.pb.GenerateRequest(model=model, token_ids=self.pb.TokenIds(ids=prompt), sampling=self.pb.Sampling(
            temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True))
        begun = time.monotonic()
        ids = [i async for message in stub.Generate(request, timeout=120) for i in message.token_ids]
        tenth = self.tenth()
        if 0 <= tenth < TENTHS:
            self.latencies[tenth].append(time.monotonic() - begun)
        return ids

    async def talk(self, stub, number):
        rng = random.Random(number)
        while self.tenth() < TENTHS:
            prompt, model = [], "donor" if rng.random() < 0.1 else "chat"
            for _ in range(TURNS):
                prompt += [rng.randrange(20, 700) for _ in range(USER_TOKENS)]
                try:
                    prompt += await self.ask(stub, model, prompt)
                except grpc.RpcError as error:
                    self.errors += 1
                    print(f"error: {error.code()} {error.details()}", flush=True)

    async def run(self, look):
        """`look(tenth)` once in a while."""
        self.begun = time.monotonic()
        async with grpc.aio.insecure_channel(self.gateway) as channel:
            stub = self.rpc.GenerateServiceStub(channel)
            talks = [asyncio.create_task(self.talk(stub, number)) for number in range(self.args.clients)]
            while (tenth := self.tenth()) < TENTHS:
                if tenth >= 0:
                    await asyncio.to_thread(look, tenth)
                await asyncio.sleep(min(5, self.args.seconds / TENTHS / 10))
            await asyncio.gather(*talks)


class Samples:
    """What the processes are seen to hold, by tenth."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.names = dict(zip(cluster.all, ("the broker", "the gateway", "the donor", "the borrower"), strict=True))
        self.seen = [{} for _ in range(TENTHS)]  # {what: values}
        self.cpu = [0.0] * TENTHS  # at the first look of each tenth

    def add(self, tenth, what, value):
        self.seen[tenth].setdefault(what, []).append(value)

    def look(self, tenth):
        for process, name in self.names.items():
            proc = pathlib.Path("/proc") / str(process.child.pid)
            status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
            own = sum(int(status[part].split()[0]) for part in ("RssAnon", "RssFile"))
            self.add(tenth, f"MB of {name}", own * 1024e-6)
            self.add(tenth, f"mappings of {name}", len((proc / "maps").read_text().splitlines()))
        leases = [lease["bytes"] for lease in json.loads(self.cluster.ctl("lease", "ls", "-o", "json").stdout)["leases"]]
        if leases:
            self.add(tenth, "bytes of a lease", statistics.mean(leases))
        self.cpu[tenth] = self.cpu[tenth] or self.cpu_seconds()

    def cpu_seconds(self):
        return sum(process.metric("process_cpu_seconds_total") for process in self.names)


def judge(clients, samples, end_cpu):
    missed = clients.errors

    def ratio(what, last, first, limit):
        nonlocal missed
        good = last / first <= limit
        missed += not good
        print(f"{'ok' if good else 'MISSED':8}{what}: {first:.5g}, at the end {last:.5g}: {last / first:.3f}, asked: at most {limit}")

    early, late = samples.seen[1], samples.seen[-1]
    for what in early:
        if what == "bytes of a lease":
            if what in late:
                ratio("leases of a MiB", 2**20 / statistics.mean(late[what]), 2**20 / statistics.mean(early[what]), 1.1)
        else:
            ratio(what, statistics.mean(late[what]), statistics.mean(early[what]), 1.01)
            if what.startswith("MB"):
                print(" " * 8 + "by tenth:", *(f"{statistics.mean(seen[what]):.2f}" for seen in samples.seen))
    cpu = samples.cpu + [end_cpu]
    work = [(cpu[i + 1] - cpu[i]) / len(clients.latencies[i]) for i in range(TENTHS)]
    ratio("CPU ms a request", 1e3 * work[-1], 1e3 * work[0], 1.03)
    medians = [statistics.median(tenth) for tenth in clients.latencies]
    ratio("latency, median, ms", 1e3 * medians[-1], 1e3 * medians[0], 1.03)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--warm", type=float, help="seconds; default: a tenth of --seconds more")
    parser.add_argument("--clients", type=int, default=8)
    args = parser.parse_args()
    args.warm = args.seconds / TENTHS if args.warm is None else args.warm
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        pb, rpc = python_stubs(folder)
        cluster = Cluster(args.bin.resolve(), folder)
        try:
            cluster.start_broker("--scale_down_window=1s")
            cluster.start_gateway()
            cluster.start_engine(MODEL, "donor", "--kv_cache_bytes=4MiB")
            cluster.start_engine(MODEL, "chat", "--kv_cache_bytes=768KiB")
            cluster.wait_models("donor", "chat")
            clients, samples = Clients(args, cluster.gateway.grpc, pb, rpc), Samples(cluster)
            asyncio.run(clients.run(samples.look))
            end_cpu = samples.cpu_seconds()
            answered = sum(map(len, clients.latencies))
            print(f"{answered} requests in {args.seconds:.0f} s, {answered / args.seconds:.0f} a second, {clients.errors} errors")
            missed = judge(clients, samples, end_cpu)
            cluster.stop()
        finally:
            cluster.cleanup()
    sys.exit(1 if missed else 0)


main()
