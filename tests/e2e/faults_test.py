# SPDX-License-Identifier: Apache-2.0
"""kill -9, SIGSTOP, SIGTERM and restarts under load."""
import json
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import grpc
import pytest
from conftest import DRAIN, TINY, WAIT, wait_until

TOKENS = 1500  # long enough to be under way when the fault strikes


class Streams:
    """`count` greedy streams at once, each in a thread of its own; ids and error code of each. Until `enough` is set, one that
    has ended well begins anew."""

    def __init__(self, address, stubs, count, tokens=TOKENS, channel=None, enough=None):
        self.pb, self.rpc = stubs
        self.tokens = tokens
        self.enough = enough
        self.ids = [[] for _ in range(count)]
        self.errors = [None] * count
        self.ended_at = [None] * count
        self.channel = channel or grpc.insecure_channel(address)
        self.stub = self.rpc.GenerateServiceStub(self.channel)
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def _run(self, i):
        request = self.pb.GenerateRequest(model="tiny", token_ids=self.pb.TokenIds(ids=[5 + i, 9, 11]),
                                          sampling=self.pb.Sampling(temperature=0, max_tokens=self.tokens,
                                                                    ignore_eos=True))
        try:
            again = True
            while again:
                for message in self.stub.Generate(request, timeout=120):
                    self.ids[i] += message.token_ids
                again = self.enough is not None and not self.enough.is_set()
        except grpc.RpcError as error:
            self.errors[i] = (error.code(), error.details())
        self.ended_at[i] = time.monotonic()

    def all_begun(self):
        return all(self.ids)

    def any_running(self):
        return any(thread.is_alive() for thread in self.threads)

    def join(self):
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive()
        self.channel.close()
        return self


def test_killing_the_broker_loses_no_request_and_the_table_comes_back(tiny, stubs):
    streams = Streams(tiny.gateway.grpc, stubs, 8)
    wait_until(streams.all_begun, WAIT, "all streams begun")
    where = {"listen": tiny.broker.grpc, "http": tiny.broker.http}
    tiny.broker.kill()
    assert streams.any_running()
    late = Streams(tiny.gateway.grpc, stubs, 4, tokens=10).join()  # while there is no broker
    assert late.errors == [None] * 4
    assert [len(ids) for ids in late.ids] == [10] * 4
    tiny.start_broker(**where)
    restarted = time.monotonic()
    wait_until(lambda: "READY" in tiny.ctl("status", check=False).stdout, WAIT, "the engine is in the new broker's table")
    print(f"re-registered {time.monotonic() - restarted:.2f} s after the broker's restart")
    streams.join()
    assert streams.errors == [None] * 8
    assert [len(ids) for ids in streams.ids] == [TOKENS] * 8


def test_killing_one_of_two_engines_loses_only_what_had_begun_there(tiny, stubs):
    second = tiny.start_engine(name="tiny")
    wait_until(lambda: "engine tiny-2 is READY" in tiny.gateway.text(), WAIT, "the gateway knows two engines")
    going = threading.Event()
    streams = Streams(tiny.gateway.grpc, stubs, 16, tokens=1500, enough=going)
    wait_until(streams.all_begun, WAIT, "all streams begun")
    second.kill()
    late = Streams(tiny.gateway.grpc, stubs, 8, tokens=10).join()
    assert late.errors == [None] * 8
    going.set()
    streams.join()
    lost = [error for error in streams.errors if error]
    assert 0 < len(lost) < 16
    assert {code for code, _ in lost} == {grpc.StatusCode.UNAVAILABLE}
    kept = [ids for ids, error in zip(streams.ids, streams.errors) if not error]
    assert all(len(ids) % 1500 == 0 for ids in kept)


def test_freezing_one_of_two_engines_moves_what_had_not_begun_and_ends_the_rest_with_one_error(tiny, stubs):
    second = tiny.start_engine(name="tiny")
    wait_until(lambda: "engine tiny-2 is READY" in tiny.gateway.text(), WAIT, "the gateway knows two engines")
    going = threading.Event()
    streams = Streams(tiny.gateway.grpc, stubs, 16, enough=going)
    wait_until(streams.all_begun, WAIT, "all streams begun")
    second.child.send_signal(signal.SIGSTOP)  # its sockets stay open: only its heartbeats end
    frozen_at = time.monotonic()
    try:
        late = Streams(tiny.gateway.grpc, stubs, 24, tokens=300).join()  # more than one engine's share: some go to the frozen one
        assert late.errors == [None] * 24
        assert [len(ids) for ids in late.ids] == [300] * 24
        assert tiny.gateway.metric("swiftcache_gateway_retries_total") > 0
        going.set()
        streams.join()
    finally:
        second.child.send_signal(signal.SIGCONT)
    lost = [i for i, error in enumerate(streams.errors) if error]
    assert 0 < len(lost) < 16
    assert {streams.errors[i][0] for i in lost} == {grpc.StatusCode.UNAVAILABLE}
    assert all("was lost after" in streams.errors[i][1] for i in lost)
    slowest = max(streams.ended_at[i] for i in lost) - frozen_at
    print(f"the last of {len(lost)} lost streams heard of it {slowest:.2f} s after the freeze")
    assert slowest < 40  # three missed heartbeats of a second, and the retry; a request has 120 s
    assert all(len(ids) % TOKENS == 0 for ids, error in zip(streams.ids, streams.errors) if not error)
    wait_until(lambda: tiny.ctl("status").stdout.count("READY") == 2, WAIT, "the thawed engine is back")
    ended = "swiftcache_e2e_request_latency_seconds_count"  # of requests that ended well
    before = second.metric(ended)

    def second_served():
        assert Streams(tiny.gateway.grpc, stubs, 4, tokens=4).join().errors == [None] * 4
        return second.metric(ended) > before

    wait_until(second_served, WAIT, "the thawed engine serves again")


class Link:
    """A TCP link to `target` that can be cut: connections break, new ones are refused."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self.target = (host, int(port))
        self.lock = threading.Lock()
        self.sockets = set()
        self.whole = True
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            with self.lock:
                if not self.whole:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(self.target)
                except OSError:  # nobody listens there just now
                    near.close()
                    continue
                self.sockets |= {near, far}
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        self._close({source, sink})

    def _close(self, sockets):
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)  # wakes who reads it
            except OSError:
                pass
            each.close()

    def cut(self):
        with self.lock:
            self.whole = False
            sockets, self.sockets = self.sockets, set()
        self._close(sockets)

    def mend(self):
        with self.lock:
            self.whole = True

    def end(self):
        self.listener.close()
        self.cut()


@pytest.fixture
def link_to_broker(cluster):
    cluster.start_broker("--heartbeat_interval=200ms")
    link = Link(cluster.broker.grpc)
    yield link
    link.end()


def test_a_broker_that_is_cut_off_from_an_engine_costs_its_clients_nothing(cluster, link_to_broker, stubs):
    cluster.start_gateway()
    engine = cluster.start_engine(TINY / "tiny-llama-a", "tiny", f"--broker={link_to_broker.address}")
    cluster.wait_models("tiny")
    mended = threading.Event()
    streams = Streams(cluster.gateway.grpc, stubs, 16, enough=mended)
    wait_until(streams.all_begun, WAIT, "all streams begun")
    link_to_broker.cut()
    wait_until(lambda: "answers, though the broker hears nothing" in cluster.gateway.text(), WAIT, "the gateway asked")
    assert "READY" not in cluster.ctl("status").stdout
    late = Streams(cluster.gateway.grpc, stubs, 4, tokens=10).join()
    assert late.errors == [None] * 4
    link_to_broker.mend()  # before a busy machine leaves a ping of the gateway without an answer for a second
    wait_until(lambda: "READY" in cluster.ctl("status").stdout, WAIT, "the broker hears of the engine again")
    mended.set()
    streams.join()
    assert streams.errors == [None] * 16
    assert [len(ids) % TOKENS for ids in streams.ids] == [0] * 16
    assert Streams(cluster.gateway.grpc, stubs, 4, tokens=10).join().errors == [None] * 4
    link_to_broker.cut()
    engine.kill()
    wait_until(lambda: '"tiny"' not in cluster.gateway.get("/v1/models")[1], WAIT, "an engine that is gone is given up")


def test_an_engine_killed_and_restarted_under_its_name_serves_again(tiny, stubs):
    tiny.engine.kill()
    tiny.engine = tiny.start_engine(name="tiny")
    wait_until(lambda: Streams(tiny.gateway.grpc, stubs, 1, tokens=4).join().errors == [None], WAIT, "served again")


def test_who_comes_to_a_dead_engines_address_with_another_model_gets_none_of_its_requests(tiny, stubs):
    tiny.broker.kill()  # so that nobody tells the gateway
    tiny.engine.kill()
    tiny.start_engine(TINY / "tiny-qwen2", "other", listen=tiny.engine.grpc)

    def refused():
        late = Streams(tiny.gateway.grpc, stubs, 1, tokens=4).join()
        assert late.ids == [[]], "tokens of another model"
        assert late.errors[0][0] == grpc.StatusCode.UNAVAILABLE
        return "serves model other" in late.errors[0][1]

    wait_until(refused, WAIT, "the gateway has reached the address again")


def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(tiny, stubs):
    channel = grpc.insecure_channel(tiny.gateway.grpc)
    grpc.channel_ready_future(channel).result(WAIT)  # before there are streams, which do not last long
    streams = Streams(tiny.gateway.grpc, stubs, 16, tokens=1500)
    wait_until(streams.all_begun, WAIT, "all streams begun")
    tiny.gateway.child.send_signal(signal.SIGTERM)
    wait_until(lambda: "draining for at most" in tiny.gateway.text(), WAIT, "the gateway drains")
    refused = Streams(tiny.gateway.grpc, stubs, 1, tokens=4, channel=channel).join()
    assert streams.any_running()
    code, details = refused.errors[0]
    assert code == grpc.StatusCode.UNAVAILABLE and "drain" in details
    assert tiny.gateway.stop() == 0
    streams.join()
    assert streams.errors == [None] * 16
    assert [len(ids) for ids in streams.ids] == [1500] * 16


def test_a_draining_engine_finishes_its_requests(tiny, stubs):
    streams = Streams(tiny.gateway.grpc, stubs, 8, tokens=1500)
    wait_until(streams.all_begun, WAIT, "all streams begun")
    assert tiny.engine.stop() == 0
    streams.join()
    assert streams.errors == [None] * 8
    text = tiny.engine.text()
    assert text.index("draining for at most") < text.rindex("ended status=OK")


def test_what_a_draining_engine_cannot_finish_is_unavailable_at_both_doors(cluster, stubs):
    cluster.start_broker()
    cluster.start_gateway()
    engine = cluster.start_engine(TINY / "tiny-llama-a", "tiny", "--drain_timeout=1ms")
    cluster.wait_models("tiny")
    streams = Streams(cluster.gateway.grpc, stubs, 8, tokens=1800, enough=threading.Event())  # until the engine ends
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1800, "ignore_eos": True, "stream": True}
    http = urllib.request.Request(f"http://{cluster.gateway.http}/v1/completions", data=json.dumps(body).encode())
    with urllib.request.urlopen(http, timeout=WAIT) as reply:
        assert reply.readline().startswith(b"data: ")
        wait_until(streams.all_begun, WAIT, "all streams begun")
        assert engine.stop() == 0
        events = [line for line in reply.read().decode().splitlines() if line]
    assert "[DONE]" not in events[-1] and "drained" in events[-1], events[-1]
    streams.join()
    assert {error and error[0] for error in streams.errors} == {grpc.StatusCode.UNAVAILABLE}
    assert all("drain" in details for _, details in streams.errors)  # who begins meanwhile is refused by one that drains


def test_a_second_engine_of_the_same_name_is_refused_before_it_opens_a_port(tiny, binaries):
    run = subprocess.run([binaries / "swiftcache-engine", f"--model={TINY / 'tiny-llama-a'}", "--model_name=tiny",
                          "--name=tiny", f"--broker={tiny.broker.grpc}", f"--shm_dir={tiny.shm_dir}",
                          "--kv_cache_bytes=16MiB", "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0"],
                         capture_output=True, text=True, timeout=WAIT)
    assert run.returncode == 1
    assert "listening" not in run.stdout
    assert "tiny" in run.stderr.splitlines()[-1]


def test_an_engine_whose_kv_memory_cannot_be_had_was_never_registered(cluster, binaries):
    cluster.start_broker()
    ask = [binaries / "swiftcache-engine", f"--model={TINY / 'tiny-llama-a'}", "--model_name=greedy", f"--broker={cluster.broker.grpc}",
           f"--shm_dir={cluster.shm_dir}", "--kv_cache_bytes=16MiB", "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0"]
    # The machine has as much; its kernel refuses it when it is taken, as one does whose control group is full.
    full = subprocess.run(["prlimit", "--fsize=1048576", *ask], capture_output=True, text=True, timeout=WAIT,
                          restore_signals=False)  # SIGXFSZ stays ignored
    assert full.returncode == 1 and "listening" not in full.stdout, full.stderr
    lines = full.stderr.splitlines()
    assert "--kv_cache_bytes wants 16777216 bytes" in lines[-1] and "lower --kv_cache_bytes" in lines[-1], full.stderr
    assert any("] weights: " in line for line in lines[:-1]), full.stderr
    assert "greedy" not in cluster.broker.text()

    engine = cluster.start_engine(TINY / "tiny-llama-a", "greedy", "--kv_cache_bytes=16MiB")
    wait_until(lambda: "] registered" in engine.text() and "greedy" in cluster.broker.text(), WAIT, "engine and broker say it")
    text = engine.text()
    assert text.index("] weights: ") < text.index("] KV memory: 1024 blocks of 16 tokens, 16777216 bytes") < text.index("] registered")


@pytest.mark.parametrize("which", ["broker", "gateway", "engine"])
def test_a_client_that_holds_a_health_watch_does_not_hold_up_the_end(tiny, which):
    process = getattr(tiny, which)
    with grpc.insecure_channel(process.grpc) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")  # an empty HealthCheckRequest: the server
        next(watch)
        began = time.monotonic()
        assert process.stop() == 0
        took = time.monotonic() - began
        watch.cancel()
    assert took < 30, f"{which} took {took:.1f} s of its {DRAIN} to drain"


@pytest.mark.parametrize("which", ["broker", "gateway", "engine"])
def test_sigterm_ends_an_idle_process_with_0(tiny, which):
    assert getattr(tiny, which).stop() == 0
