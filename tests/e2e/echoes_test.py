# SPDX-License-Identifier: Apache-2.0
"""What engines and broker, donors and borrowers say to each other of leases comes twice, the second time late.

Real processes; proxies stand on both ways. A channel between engines loses its lease by an echo, which nobody could tell
from a peer that lies; an echo of a call to the broker changes nothing. Clients notice neither."""
import array
import collections
import contextlib
import itertools
import os
import pathlib
import random
import socket
import struct
import threading
from concurrent import futures

import grpc
import pytest
from leasing import ARENA, BOUND, DONOR, PATIENT, Client, Leasing, hits, pytest_generate_tests, storm, talks  # noqa: F401

ECHO_AFTER = 0.4  # seconds at most; leases are renewed after a third of one
SOON = {"REVOKE": 0.01, "RELEASE": 0}  # likewise: the channel ends with these
KINDS = ["", "HELLO", "GRANT", "REFUSE", "RENEW", "RENEWED", "REVOKE", "RELEASE", "STORE", "STORED"]  # shm_message.h
OFTEN = {"HELLO": 0.1, "GRANT": 0.1, "STORE": 0.01, "STORED": 0.01}  # how many are echoed; of the others half
CALLS = {"Register", "Heartbeat", "ReportWindow", "RequestLease", "ReportLease", "ScaleUp"}


class Echoes:
    """Says things again, each at its time, and counts them."""

    def __init__(self, seed):
        self.random, self.counts, self.lock, self.timers = random.Random(seed), collections.Counter(), threading.Lock(), []

    def again(self, what, say):
        def later():
            with contextlib.suppress(OSError, ValueError, grpc.RpcError):  # its time, or its channel's, may be over
                say()
                with self.lock:
                    self.counts[what] += 1

        within = SOON.get(what, ECHO_AFTER)
        if within == 0:
            return later()
        with self.lock:
            timer = threading.Timer(self.random.uniform(0, within), later)
            timer.daemon = True
            self.timers = [t for t in self.timers if t.is_alive()] + [timer]
        timer.start()

    def chance(self, p):
        with self.lock:
            return self.random.random() < p

    def stop(self):
        for timer in self.timers:
            timer.cancel()


class EchoingBroker(grpc.GenericRpcHandler):
    """A door to the broker that passes each call on twice, and tells of changes twice now and then. It names other
    channels than those of the engines, which `channel_for` makes."""

    def __init__(self, broker, echoes, channel_for):
        from swiftcache.v1 import broker_pb2
        self.pb, self.echoes, self.channel_for = broker_pb2, echoes, channel_for
        self.broker = grpc.insecure_channel(broker)
        self.server = grpc.server(futures.ThreadPoolExecutor(64), handlers=[self])
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def service(self, details):
        name = details.method.rsplit("/", 1)[1]
        if name == "Watch":
            call = self.broker.unary_stream(details.method)
            return grpc.unary_stream_rpc_method_handler(lambda request, context: self._watch(call, request, context))
        call = self.broker.unary_unary(details.method)
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._call(name, call, request, context))

    def _call(self, name, call, request, context):
        if name == "Register":
            message = self.pb.RegisterRequest.FromString(request)
            if message.engine.lease_channel:
                message.engine.lease_channel = self.channel_for(message.engine.lease_channel)
            request = message.SerializeToString()
        try:
            answer = call(request, timeout=5)
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())
        self.echoes.again(name, lambda: call(request, timeout=5))
        return answer

    def _watch(self, call, request, context):
        events = call(request)
        context.add_callback(events.cancel)
        try:
            for event in events:
                yield event
                if self.echoes.chance(0.02):
                    self.echoes.counts["Watch"] += 1
                    yield event
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def stop(self):
        self.server.stop(None)
        self.broker.close()


class EchoingChannel:
    """A lease channel of its own, whose datagrams go on to the donor's and back."""

    def __init__(self, path, donor, echoes):
        self.donor, self.echoes = donor, echoes
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.bind(path)
        self.door.listen(64)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        with contextlib.suppress(OSError):
            while True:
                borrower, _ = self.door.accept()
                donor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                try:
                    donor.connect(self.donor)
                except OSError:
                    borrower.close()
                    continue
                for ends in (borrower, donor), (donor, borrower):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source, sink):
        with contextlib.suppress(OSError):
            while True:
                data, fds, _, _ = socket.recv_fds(source, 65536, 256)
                if not data:
                    break
                fds = [Descriptor(fd) for fd in fds]
                self._send(sink, data, fds)
                kind = KINDS[struct.unpack_from("H", data)[0]]
                if self.echoes.chance(OFTEN.get(kind, 0.5)):
                    self.echoes.again(kind, lambda data=data, fds=fds: self._send(sink, data, fds))
        for end in source, sink:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _send(sink, data, fds):
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd.number for fd in fds]))] if fds else []
        sink.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)

    def stop(self):
        self.door.shutdown(socket.SHUT_RDWR)
        self.door.close()


class Descriptor:
    """Closed when the last who may send it is gone."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        os.close(self.number)


class Echoing(Leasing):
    def begin(self, seed, *broker_flags):
        super().begin(*broker_flags)
        self.echoes, self.channels = Echoes(seed), {}
        self.door = EchoingBroker(self.broker.grpc, self.echoes, self.channel_for)
        return self

    def channel_for(self, donor):
        if donor not in self.channels:
            path = f"{self.shm_dir}/echo{len(self.channels)}"
            self.channels[donor] = (path, EchoingChannel(path, donor, self.echoes))
        return self.channels[donor][0]

    def stop(self):
        super().stop()
        self.close_channels()

    def cleanup(self):
        super().cleanup()
        self.echoes.stop()
        self.door.stop()
        self.close_channels()

    def close_channels(self):
        for path, channel in self.channels.values():
            channel.stop()
            pathlib.Path(path).unlink(missing_ok=True)
        self.channels = {}


@pytest.fixture
def echoing(binaries, tmp_path):
    made = Echoing(binaries, tmp_path)
    yield made
    made.cleanup()


def test_what_is_said_of_leases_may_come_twice_and_late(echoing, stubs, talks, seed):
    echoing.begin(seed, "--lease_ttl=1s", PATIENT)  # heartbeats pass through this process, which has much to do
    door = f"--broker={echoing.door.address}"
    echoing.engine("donor", "--kv_cache_bytes=1536KiB", door)
    echoing.engine("donor2", "--kv_cache_bytes=2MiB", door)  # lends most while it is idle
    echoing.engine("in_place", ARENA, "--stream=in_place", door)
    echoing.engine("lsc", ARENA, "--stream=lsc", door)
    echoing.ready("donor2", "in_place", "lsc")
    load = echoing.load(stubs, talks, "in_place", "lsc", clients=2)
    load.until(hits(echoing, "in_place", "lsc"), "hits in leases", BOUND)
    ending, revoked = threading.Event(), []

    def want_back():
        """Of donor2's 128 blocks 119, again and again."""
        client = Client(echoing.gateway.grpc, stubs)
        for n in itertools.takewhile(lambda _: not ending.wait(1), itertools.count()):
            assert client.ask("donor2", talks.long_prompt, talks.answer_tokens, salt=f"{n}") == talks.long_prompt_answer
        client.close()

    threads = [threading.Thread(target=storm, args=(echoing, seed, ending, revoked)), threading.Thread(target=want_back)]
    for thread in threads:
        thread.start()
    counts, wanted = echoing.echoes.counts, CALLS | {"Watch"} | set(KINDS) - {"", "REFUSE"}
    enough = hits(echoing, "in_place", "lsc", tokens=1000)
    try:
        load.until(lambda: wanted <= set(counts), f"echoes of {wanted}", BOUND)
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    load.until(enough, "hits all the same")  # a busy machine may have none before the storm is over
    print(f"{load.asked} answers; echoes: {dict(counts)}")
    load.stop()
    echoing.finish()
