# SPDX-License-Identifier: Apache-2.0
"""The sides of a comparison: clusters of real processes that are asked the same, and what is said of their figures."""
import argparse
import concurrent.futures
import contextlib
import itertools
import math
import os
import pathlib
import platform
import random
import re
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import grpc  # noqa: E402
from conftest import ROOT, SMOLLM2, Cluster, go_duration, instance_of, python_stubs  # noqa: E402

TOKEN_BYTES = 30 * 2 * 3 * 64 * 2  # bf16 KV of a SmolLM2 token: layers, K and V, KV heads, head size, bytes
VOCABULARY = (100, 40000)


def cpu_name():
    return next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), platform.processor())


def arguments(description, cases):
    """A parser of which case is to run, and of what all of them are told; Bench wants what it parses."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=cases)
    parser.add_argument("--bin", default=ROOT / "build/release/bin")
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def random_tokens(rng, count):
    return [rng.randrange(*VOCABULARY) for _ in range(count)]


def percentile(values, p):
    """Nearest rank: the least of them that p % are not above."""
    return sorted(values)[max(0, math.ceil(len(values) * p / 100) - 1)]


def interval(values, rng, rounds=2000):
    """95 % bootstrap interval of the median."""
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(rounds))
    return medians[int(rounds * 0.025)], medians[int(rounds * 0.975)]


def ratio_interval(above, below, p, rng, block=1, rounds=2000):
    """95 % bootstrap interval of the ratio of two sides' percentiles; the same request stands at the same place in both.
    `block`: as many in a row are drawn together, since one thing may have slowed all of them."""
    pairs = list(zip(above, below))
    return cluster_ratio_interval([pairs[i:i + block] for i in range(0, len(pairs), block)], p, rng, rounds)


def cluster_ratio_interval(clusters, p, rng, rounds=2000):
    """The same where each of `clusters` is a list of pairs that are drawn together."""
    ratios = []
    for _ in range(rounds):
        above, below = zip(*itertools.chain.from_iterable(rng.choices(clusters, k=len(clusters))))
        ratios.append(percentile(above, p) / percentile(below, p))
    return sorted(ratios)[int(rounds * 0.025)], sorted(ratios)[int(rounds * 0.975)]


@contextlib.contextmanager
def beside(work):
    """`work` goes on in a thread of its own until it sees that the event it is given is set, as it is at the end of the block.
    The block is given its future; what it raises, it raises in the block's place."""
    ending = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(work, ending)
        try:
            yield running
        finally:
            ending.set()
        running.result()


class Answer:
    """One greedy answer: ids, time to the first token, gaps between tokens, tokens found in caches."""

    @staticmethod
    def request(pb, prompt, tokens, model):
        return pb.GenerateRequest(model=model, token_ids=pb.TokenIds(ids=prompt),
                                  sampling=pb.Sampling(temperature=0, max_tokens=tokens, ignore_eos=True))

    def __init__(self, stub, pb, prompt, tokens, model="chat"):
        self.ids, times, begun = [], [], time.monotonic()
        for message in stub.Generate(self.request(pb, prompt, tokens, model), timeout=600):
            self.ids += message.token_ids
            if message.token_ids:
                times.append(time.monotonic())
            if message.HasField("usage"):
                self.usage = message.usage
        self.ttft, self.seconds = times[0] - begun, times[-1] - begun
        self.computed = len(prompt) - self.usage.cached_tokens.local - self.usage.cached_tokens.donor
        self.tpot = (times[-1] - times[0]) / max(1, len(self.ids) - 1)
        self.gaps = list(zip(times, times[1:]))  # between tokens: (from, to)
        self.longest_gap = max((b - a for a, b in self.gaps), default=0)


class Side:
    """One cluster of a comparison: the chat engine with `own` tokens of memory, and a donor for each of `donors`."""

    def __init__(self, bench, name, own, donors=(), chat_flags=(), donor_flags=(), window="1s", broker_flags=()):
        self.name, self.bench = name, bench
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-", dir=bench.folder))
        self.cluster = Cluster(bench.binaries, self.folder)
        try:
            self.cluster.start_broker(f"--scale_down_window={window}", *broker_flags)
            self.cluster.start_gateway()
            threads = f"--threads={bench.args.threads}"
            self.donors = [self.cluster.start_engine(bench.args.model, f"donor{i}", threads, f"--kv_cache_bytes={tokens * TOKEN_BYTES}",
                                                     *donor_flags) for i, tokens in enumerate(donors)]
            self.chat = self.cluster.start_engine(bench.args.model, "chat", threads, f"--kv_cache_bytes={own * TOKEN_BYTES}",
                                                  *chat_flags)
            self.cluster.wait_models("chat", *(f"donor{i}" for i in range(len(donors))))
        except BaseException:  # what is not there whole nobody stops
            self.cluster.cleanup()
            raise
        self.stub = bench.rpc.GenerateServiceStub(grpc.insecure_channel(self.cluster.gateway.grpc))

    def begin(self, prompt, tokens, model):
        """The call, which can be cancelled; its messages are read by nobody."""
        return self.stub.Generate(Answer.request(self.bench.pb, prompt, tokens, model), timeout=600)

    def ask(self, prompt, tokens, model="chat"):
        return Answer(self.stub, self.bench.pb, prompt, tokens, model)

    def stop(self):
        try:
            self.cluster.stop()
        finally:
            self.cluster.cleanup()


class Bench:
    def __init__(self, args):
        self.args, self.binaries = args, pathlib.Path(args.bin).resolve()
        self.rng = random.Random(args.seed)
        self.sides = []
        self.missed = 0

    def asked(self, what, value, limit, least=False):
        """One figure beside what was asked of it: `limit` at most, or at the least; True where it is a yes or no."""
        good = value >= limit if least else value <= limit if limit is not True else value
        bound = "" if limit is True else f", asked: {'at least' if least else 'at most'} {limit:g}"
        print(f"{'ok' if good else 'MISSED':8}{what}: {value if limit is True else f'{value:.4g}'}{bound}")
        self.missed += not good

    def __enter__(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="swiftcache-bench-")
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / "stubs").mkdir()
        self.pb, self.rpc = python_stubs(self.folder / "stubs")
        return self

    def __exit__(self, *_):
        try:
            self.stop_all()
        finally:
            self.temporary.cleanup()

    def stop_all(self):
        """Each of them, whatever becomes of the others."""
        with contextlib.ExitStack() as stops:
            while self.sides:
                stops.callback(self.sides.pop().stop)  # the last is called first

    def add(self, side):
        """Which is stopped at the end."""
        self.sides.append(side)
        return side

    def side(self, *args, **kwargs):
        return self.add(Side(self, *args, **kwargs))

    def tokens(self, count):
        return random_tokens(self.rng, count)


def run(case, args):
    """Says where, what and how, then runs the case; ends the process with 1 if a figure missed what was asked of it."""
    print(f"machine: {cpu_name()}, {os.cpu_count()} cores; model: {pathlib.Path(args.model).name}, KV bf16; "
          f"command: {' '.join(sys.argv)}")
    with Bench(args) as bench:
        case(bench)
    sys.exit(bench.missed > 0)


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


class Asker:
    """Registers as an engine beside the one of a side, and only asks for memory: what it is granted it never maps."""

    def __init__(self, side, number):
        from swiftcache.v1 import broker_pb2, broker_pb2_grpc
        self.pb, self.side = broker_pb2, side
        self.broker = broker_pb2_grpc.BrokerServiceStub(grpc.insecure_channel(side.cluster.broker.grpc))
        watch = self.broker.Watch(broker_pb2.WatchRequest(watcher="asker"))
        info = next(watch).snapshot.engines[0].info
        watch.cancel()
        info.name = info.model_name = "asker"
        token, info.state, info.address = f"asker-{number}", broker_pb2.STARTING, ""
        info.instance_id = instance_of(token)
        self.me = {"name": info.name, "instance_id": info.instance_id, "token": token}
        self.me["incarnation"] = self.broker.Register(broker_pb2.RegisterRequest(engine=info, token=token)).incarnation
        self.alive = contextlib.ExitStack()
        self.alive.enter_context(beside(self._beat))  # the broker ends the leases of who says nothing

    def _beat(self, ending):
        while not ending.wait(0.5):
            self.broker.Heartbeat(self.pb.HeartbeatRequest(**self.me))

    def lent(self):
        """Bytes."""
        donor = self.side.chat
        return donor.metric("swiftcache_kv_blocks", state="leased_out") * 16 * TOKEN_BYTES

    def borrow(self, want, look_every=0.002):
        """Seconds until all of it was granted, and the leases."""
        begun, leases, lent, moved, asked = time.monotonic(), [], 0, 0.0, 0
        while lent < want:
            now = time.monotonic()
            assert now - begun < 60, f"{lent} of {want} bytes are lent after a minute"
            if now - moved > 1:  # what was offered has lapsed, before so busy a donor had cleared it
                asked, moved = asked + 1, now
                answer = self.broker.RequestLease(self.pb.RequestLeaseRequest(
                    **self.me, request_key=str(asked), want_bytes=int(want - lent), waiting_tokens=1))
                got = sum(lease.num_bytes for lease in answer.leases)
                assert asked > 1 or got >= want, f"{got} of {want} bytes: {answer.shortage}"
                leases += answer.leases
            time.sleep(look_every)
            before, lent = lent, self.lent()
            moved = now if lent != before else moved
        return time.monotonic() - begun, leases

    def give_back(self, leases):
        for lease in leases:
            try:
                self.broker.RevokeLease(self.pb.RevokeLeaseRequest(lease_id=lease.lease_id))
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.NOT_FOUND, error  # it has ended: an asker keeps nothing alive
        while self.lent() > 0:
            time.sleep(0.01)
        self.alive.close()
        self.broker.Deregister(self.pb.DeregisterRequest(
            **{key: self.me[key] for key in ("name", "instance_id", "token")}))


class Revoker:
    """Revokes a lease that the chat engine uses, as the broker does, every so often: `every`, seconds at least and at most."""

    def __init__(self, bench, side, every):
        from swiftcache.v1 import broker_pb2, broker_pb2_grpc
        self.pb, self.bench, self.side, self.every = broker_pb2, bench, side, every
        self.broker = broker_pb2_grpc.BrokerServiceStub(grpc.insecure_channel(side.cluster.broker.grpc))
        self.tried, self.revoked = set(), set()  # the broker did revoke the latter; the others had ended

    def in_use(self):
        """By the borrower's log: a lease that it has not opened yet comes back at once, and is no measurement."""
        log = self.side.chat.text()
        opened, ended = (set(re.findall(rf"lease (\d+) {end}", log)) for end in (r"of \d+ blocks from \S+ is in use", "is out of use"))
        return sorted(opened - ended - self.tried)

    def _revoke(self, ending):
        while not ending.wait(self.bench.rng.uniform(*self.every)):
            leases = self.in_use()
            if not leases:
                continue
            lease = self.bench.rng.choice(leases)
            self.tried.add(lease)
            try:
                self.broker.RevokeLease(self.pb.RevokeLeaseRequest(lease_id=int(lease)))
                self.revoked.add(lease)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.NOT_FOUND, error

    def __enter__(self):
        self.running = beside(self._revoke)
        self.running.__enter__()
        return self

    def __exit__(self, *error):
        return self.running.__exit__(*error)

    def times(self):
        """Seconds, by every lease that this revoked."""
        said = re.compile(r"lease (\d+) (?:came back|was fenced): .*, (\S+) after it was asked back")
        found = [m for donor in self.side.donors for m in said.findall(donor.text())]
        return {lease: seconds for lease, text in found if lease in self.revoked and (seconds := go_duration(text)) > 0}
