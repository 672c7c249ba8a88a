# SPDX-License-Identifier: Apache-2.0
"""Real engines that lend and borrow, clients that hold conversations with them, and what the tests of leases share."""
import contextlib
import itertools
import os
import pathlib
import random
import re
import socket
import threading
import time

import grpc
import pytest
from conftest import TINY, WAIT, Cluster, go_duration, wait_until

MODEL = TINY / "tiny-llama-a"  # blocks of 16 tokens have 16 KiB in bf16
BLOCK_TOKENS = 16
ARENA = "--kv_cache_bytes=768KiB"  # 48 blocks: about four conversations of twelve
DONOR = "--kv_cache_bytes=4MiB"
BOUND = 4 * WAIT  # seconds for what takes ten to fifty, or needs luck
RECLAIM = 1  # second until revoked memory is back, at the latest; late_leases_test.py says how many may miss the deadline
PATIENT = "--heartbeat_misses=240"  # a broker that takes nobody for dead within a minute
LONG_TALK = 700  # tokens of an answer that is under way when the fault strikes


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        seeds = range(1, 21) if metafunc.config.getoption("--long") else [1]
        metafunc.parametrize("seed", seeds, ids=[f"seed{seed}" for seed in seeds])


class Talks:
    """Conversations of several turns: what the users say, and what the oracle answers."""

    def __init__(self, seed, conversations, turns, user_tokens=(16, 48), answer_tokens=12, ids=(20, 700)):
        rng = random.Random(seed)
        self.answer_tokens = answer_tokens
        self.turns = range(turns)
        self.conversations = range(conversations)
        self.users = [[[rng.randrange(*ids) for _ in range(rng.randrange(*user_tokens))] for _ in self.turns]
                      for _ in self.conversations]
        self.long_prompt = [rng.randrange(*ids) for _ in range(1900)]
        self.answers = [[] for _ in self.conversations]  # [conversation][turn]: (ids, log-probabilities)

    def prompt(self, conversation, turn):
        """The history before, as the oracle told it, and what the user says now."""
        before = zip(self.users[conversation][:turn], self.answers[conversation])
        return [i for user, (ids, _) in before for i in user + ids] + self.users[conversation][turn]

    def new_tokens(self, conversation, turn):
        """Of this prompt, at the most: what a cache cannot have that never loses anything."""
        known = len(self.prompt(conversation, turn - 1)) + self.answer_tokens - 1 if turn else 0
        return len(self.prompt(conversation, turn)) - known // BLOCK_TOKENS * BLOCK_TOKENS

    def learn(self, client, model):
        for conversation in self.conversations:
            for turn in self.turns:
                self.answers[conversation].append(client.ask(model, self.prompt(conversation, turn), self.answer_tokens))
        return self

    def learn_long(self, client, model):
        self.long_answers = [client.ask(model, users[0], LONG_TALK) for users in self.users[:4]]
        self.long_prompt_answer = client.ask(model, self.long_prompt, self.answer_tokens)
        return self


class Client:
    def __init__(self, address, stubs):
        self.pb, rpc = stubs
        self.channel = grpc.insecure_channel(address)
        self.stub = rpc.GenerateServiceStub(self.channel)
        self.cached = 0  # tokens of the last prompt asked

    def stream(self, model, prompt, tokens, salt=""):
        sampling = self.pb.Sampling(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=0)
        return self.stub.Generate(self.pb.GenerateRequest(model=model, token_ids=self.pb.TokenIds(ids=prompt),
                                                          sampling=sampling, cache_salt=salt), timeout=120,
                                  wait_for_ready=True)

    def ask(self, model, prompt, tokens, salt="", begun=None):
        """(ids, log-probabilities) of a greedy answer; raises grpc.RpcError."""
        ids, logprobs = [], []
        for message in self.stream(model, prompt, tokens, salt):
            ids += message.token_ids
            logprobs += [entry.logprob for entry in message.logprobs]
            if message.HasField("usage"):
                self.cached = message.usage.cached_tokens.local + message.usage.cached_tokens.donor
            if begun and ids:
                begun()
        assert len(ids) == len(logprobs) == tokens, (len(ids), len(logprobs), tokens)
        return ids, logprobs

    def close(self):
        self.channel.close()


class Load:
    """Clients that hold all conversations turn by turn, again and again until `stop`; each time `fresh`, under another
    salt, or all the time the same."""

    def __init__(self, cluster, stubs, talks, *models, clients=3, fresh=True):
        self.talks, self.fresh, self.asked, self.wrong, self.errors = talks, fresh, 0, [], []
        self.not_cached = 0  # tokens of whole blocks of prompts
        self.computed_again = dict.fromkeys(models, 0)  # tokens of prompts that a cache would have that loses nothing
        self.ending, self.lock = threading.Event(), threading.Lock()
        self.rounds = {(model, first): 0 for model in models for first in range(clients)}  # that each client has ended
        jobs = [(cluster.gateway.grpc, stubs, *client, clients) for client in self.rounds]
        self.threads = [threading.Thread(target=self._client, args=job) for job in jobs]
        for thread in self.threads:
            thread.start()

    def _client(self, address, stubs, model, first, step):
        client = Client(address, stubs)
        while not self.ending.is_set():
            salt = f"{self.rounds[model, first] if self.fresh else first}"
            for turn in self.talks.turns:
                for conversation in self.talks.conversations[first::step]:
                    if not self.ending.is_set():
                        self._turn(client, model, conversation, turn, salt)
            self.rounds[model, first] += 1
        client.close()

    def _turn(self, client, model, conversation, turn, salt):
        prompt = self.talks.prompt(conversation, turn)
        try:
            got = client.ask(model, prompt, self.talks.answer_tokens, salt)
        except Exception as error:  # an answer of the wrong length is one too
            got = None
            with self.lock:
                self.errors.append((model, conversation, turn, repr(error)))
        with self.lock:
            self.asked += 1
            if got is not None:
                self.not_cached += (len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS - client.cached
                self.computed_again[model] += len(prompt) - client.cached - self.talks.new_tokens(conversation, turn)
            if got is not None and got != self.talks.answers[conversation][turn]:
                self.wrong.append((model, conversation, turn, salt, got, self.talks.answers[conversation][turn]))

    def until(self, condition, what, seconds=WAIT):
        wait_until(lambda: self.errors or condition(), seconds, what)
        assert self.errors == [], self.errors[0]
        return self

    def answered(self, requests):
        """Until so many more have been answered."""
        wanted = self.asked + requests
        return self.until(lambda: self.asked >= wanted, f"{requests} more answers")

    def stop(self):
        """Without errors, and with the oracle's answers."""
        self.end()
        assert self.errors == []
        assert self.wrong == [], f"{len(self.wrong)} of {self.asked} answers differ, the first: {self.wrong[0]}"

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join(150)
            assert not thread.is_alive(), "a client does not end"


class Wire:
    """A TCP proxy that can be cut: then nothing passes, in silence, and nothing is lost. Its answers can be made to take
    `answers_after` seconds, twice that at most."""

    def __init__(self, address):
        self.answers_after = 0
        host, port = address.rsplit(":", 1)
        self.to = (host, int(port))
        self.whole = threading.Event()
        self.whole.set()
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.door.getsockname()[1]}"
        self.sockets = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                here, _ = self.door.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(here,), daemon=True).start()

    def _connect(self, here):
        self.whole.wait()
        try:
            there = socket.create_connection(self.to)
        except OSError:
            return here.close()
        self.sockets += [here, there]
        threading.Thread(target=self._pass, args=(here, there), daemon=True).start()
        self._pass(there, here, answers=True)

    def _pass(self, source, sink, answers=False):
        try:
            while data := source.recv(65536):
                if answers:
                    time.sleep(self.answers_after)
                self.whole.wait()
                sink.sendall(data)
            self.whole.wait()
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self):
        self.whole.clear()

    def mend(self):
        self.whole.set()

    def close(self):
        self.mend()
        for end in [self.door, *self.sockets]:
            end.close()


class TakenBack:
    """Leases in use that donors of this run's clusters asked back, by the logs of all their engines, also of those that were
    killed: seconds until their memory was back, and the donor's --revoke_deadline. In use is what its borrower says so of;
    what it had not opened yet comes back at once. A donor that ends leaves more time, and where nobody reads the logs
    unread_log_test.py looks by itself."""
    all = []

    @classmethod
    def note(cls, cluster):
        engines = [(process.child.args, process.text()) for process in cluster.all if process.child.args[0].endswith("-engine")]
        used = {lease for _, log in engines for lease in re.findall(r"lease (\d+) of \d+ blocks from \S+ is in use", log)}
        for args, log in engines:
            deadline = ([flag.split("=")[1] for flag in args if flag.startswith("--revoke_deadline=")] or ["50ms"])[-1]
            before_end = re.split(r"signal \d+: draining", log)[0]
            back = re.findall(r"lease (\d+) (?:came back|was fenced): .*, (?!0 )(\S+) after it was asked back", before_end)
            cls.all += [(go_duration(seconds), go_duration(deadline)) for lease, seconds in back if lease in used]

    @classmethod
    def late(cls):
        return sorted(seconds for seconds, deadline in cls.all if seconds > deadline)


class Leasing(Cluster):
    """A cluster whose engines lend and borrow."""

    def __init__(self, binaries, folder, model=MODEL):
        super().__init__(binaries, folder)
        self.model = model
        self.engines, self.wires, self.loads = {}, [], []

    def begin(self, *broker_flags):
        self.broker_flags = ("--scale_down_window=500ms", "--heartbeat_interval=250ms",
                             "--heartbeat_misses=8", *broker_flags)  # a busy machine keeps the living waiting too
        self.start_broker(*self.broker_flags)
        self.start_gateway()
        return self

    def engine(self, name, *flags, model_name=None):
        self.engines[name] = self.start_engine(self.model, model_name or name, f"--name={name}", *flags, wait=False)
        return self.engines[name]

    def wire(self):
        """The flag of an engine whose way to the broker can be cut."""
        self.wires.append(Wire(self.broker.grpc))
        return f"--broker={self.wires[-1].address}"

    def ready(self, *models):
        for engine in self.engines.values():
            engine.wait_healthy()
        self.wait_models(*models)
        return self

    def load(self, stubs, talks, *models, clients=3, fresh=True):
        self.loads.append(Load(self, stubs, talks, *models, clients=clients, fresh=fresh))
        return self.loads[-1]

    def leases(self):
        """[(id, state, donor, borrower)] as the broker has them."""
        rows = [line.split() for line in self.ctl("lease", "ls").stdout.splitlines()]
        return [(row[0], row[1].lower(), *row[2:4]) for row in rows if row and row[0].isdigit()]

    def pairs(self):
        """{(donor, borrower)} of the leases that there are."""
        return {lease[2:] for lease in self.leases()}

    def granted(self):
        """Ids of those in use."""
        return [lease[0] for lease in self.leases() if lease[1] == "granted"]

    def count(self, name, metric, **labels):
        return self.engines[name].metric(metric, **labels)

    def from_donors(self, name):
        """Prompt tokens that it found in leases."""
        return self.count(name, "swiftcache_prompt_tokens_by_source_total", source="donor")

    def computed(self, name):
        return self.count(name, "swiftcache_prompt_tokens_by_source_total", source="computed")

    def blocks(self, name, state):
        return self.count(name, "swiftcache_kv_blocks", state=state)

    def foreign_mappings(self, name):
        """Chunks of others' arenas in its address space: only those are mapped read-only."""
        maps = pathlib.Path(f"/proc/{self.engines[name].child.pid}/maps").read_text().splitlines()
        return sum("swiftcache-kv" in line and " r--s " in line for line in maps)

    def finish(self):
        """Leases end with their borrowers, and everything ends in order and leaves nothing behind."""
        alive = [name for name, engine in self.engines.items() if engine.child.poll() is None]
        wait_until(lambda: not any(self.blocks(name, "used") for name in alive), WAIT, "no block is used")
        last = "donor" if "donor" in alive else alive[-1]
        for name in alive:
            if name != last:
                assert self.engines[name].stop() == 0
        wait_until(lambda: self.blocks(last, "leased_out") == self.blocks(last, "leased_in") == 0, WAIT,
                   f"{last} neither lends nor borrows")
        wait_until(lambda: self.leases() == [], WAIT, lambda: f"no lease is left: {self.leases()}")
        self.stop()
        assert os.listdir(self.shm_dir) == []

    def cleanup(self):
        for load in self.loads:
            load.ending.set()
        for wire in self.wires:
            wire.close()
        super().cleanup()
        TakenBack.note(self)


@pytest.fixture
def leasing(binaries, tmp_path):
    made = Leasing(binaries, tmp_path)
    yield made
    made.cleanup()


@contextlib.contextmanager
def alone(binaries, folder, stubs, arena, model=MODEL):
    """A client of the chat engine alone, with enough memory: the oracle."""
    cluster = Leasing(binaries, folder, model)
    try:
        cluster.begin().engine("chat", "--transport=none", f"--kv_cache_bytes={arena}")
        client = Client(cluster.ready("chat").gateway.grpc, stubs)
        yield client
        client.close()
        cluster.finish()
    finally:
        cluster.cleanup()


@pytest.fixture(scope="module")
def talks(binaries, tmp_path_factory, stubs):
    """Conversations, and what the model says alone with enough memory."""
    with alone(binaries, tmp_path_factory.mktemp("alone"), stubs, "64MiB") as client:
        return Talks(seed=11, conversations=12, turns=4).learn(client, "chat").learn_long(client, "chat")


def hits(cluster, *names, tokens=500):
    """The condition that each of these finds so many more prompt tokens in leases."""
    wanted = {name: cluster.from_donors(name) + tokens for name in names}
    return lambda: all(cluster.from_donors(name) >= least for name, least in wanted.items())


def half_lent_to(cluster, *borrowers):
    """A condition: an engine `donor` with 128 blocks lends to each of these, and nearly half of what it has."""
    return lambda: (cluster.blocks("donor", "leased_out") > 48 and
                    {lease[3] for lease in cluster.leases() if lease[1:3] == ("granted", "donor")} == set(borrowers))


# How a donor's need of what it had lent ended, by its log: how long until it was back, how many blocks, how long until its
# loop had taken it; or before all of it was back, since what was lacking had come free.
NEED_MET = r"what was lent is back (\S+) after it was needed, all of (\d+) blocks, and taken (\S+) later"
NEED_OVER = r"blocks that were lent and needed the last \d+ are needed no more"


def needs_met(engine):
    """By its log, of each need of its own that was met: seconds until the memory was back, and from then until its loop had
    taken it."""
    return [(go_duration(back), go_duration(taken)) for back, _, taken in re.findall(NEED_MET, engine.text())]


def needs_ended(engine):
    """How many, in either way."""
    return len(re.findall(f"{NEED_MET}|{NEED_OVER}", engine.text()))


def storm(leasing, seed, ending, revoked):
    """An operator who revokes some lease ten times a second, and every second all: what one held is mostly saved in time."""
    rng = random.Random(seed)
    for number in itertools.count(1):
        if ending.wait(0.1):
            return
        if ids := leasing.granted():
            some = ids if number % 10 == 0 else [rng.choice(ids)]
            run = leasing.ctl("lease", "revoke", *some, check=False)  # they may have ended meanwhile
            revoked.append(run.returncode == 0)
