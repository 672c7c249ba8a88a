# SPDX-License-Identifier: Apache-2.0
"""A borrower that means harm, beside an honest one, on a donor that is at work: nothing that it does reaches a token, an
error or somebody else's lease, and what was lent to it is back at the deadline.

It speaks the wire of engine/transport/shm_message.h by itself."""
import contextlib
import fcntl
import mmap
import os
import random
import socket
import struct
import threading
import time

import grpc
import pytest
from conftest import instance_of, wait_until
from leasing import ARENA, BOUND, DONOR, RECLAIM, WAIT, hits, leasing, pytest_generate_tests, talks  # noqa: F401

VERSION, HELLO, GRANT, RENEW, REVOKE, STORE = 2, 1, 2, 4, 6, 8  # shm_message.h
STAGING = 1 << 20
F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 1033, 2, 4, 16


def message(kind, body=b""):
    return struct.pack("HHI", kind, VERSION, 8 + len(body)) + body


class Mallory:
    """Registers as an engine, has leases granted, and misuses them one by one."""

    def __init__(self, cluster, seed):
        from swiftcache.v1 import broker_pb2, broker_pb2_grpc
        self.pb, self.random = broker_pb2, random.Random(seed)
        self.broker = broker_pb2_grpc.BrokerServiceStub(grpc.insecure_channel(cluster.broker.grpc))
        with contextlib.closing(self.watch()) as (_, first):
            self.info = next(e.info for e in first.snapshot.engines if e.info.name == "donor")
        self.donor = self.info.name
        self.info.name = self.info.model_name = "mallory"
        self.info.registration = 1
        self.token, self.info.state, self.info.address = f"mallory-{seed}", broker_pb2.STARTING, ""
        self.info.instance_id = instance_of(self.token)
        self.me = {"name": "mallory", "instance_id": self.info.instance_id, "token": self.token}
        answer = self.broker.Register(broker_pb2.RegisterRequest(engine=self.info, token=self.token))
        self.me["incarnation"] = answer.incarnation
        self.staging = os.memfd_create("mallory", os.MFD_ALLOW_SEALING)
        os.posix_fallocate(self.staging, 0, STAGING)
        with mmap.mmap(self.staging, STAGING) as memory:
            memory[:] = b"\xbd" * STAGING
        fcntl.fcntl(self.staging, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)
        self.written, self.claimed, self.done, self.granted, self.ending = [], [], [], 0, threading.Event()
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        while not self.ending.wait(0.1):
            with contextlib.suppress(grpc.RpcError):
                self.broker.Heartbeat(self.pb.HeartbeatRequest(**self.me))

    def watch(self, **who):
        stream = self.broker.Watch(self.pb.WatchRequest(watcher="mallory", **who))
        first = next(stream)

        class Both(tuple):
            def close(self):
                stream.cancel()

        return Both((stream, first))

    def lease(self):
        """(lease, its channel after GRANT, the descriptors that came) or None."""
        with contextlib.closing(self.watch(instance_id=self.info.instance_id, token=self.token)) as (events, _):
            answer = self.broker.RequestLease(self.pb.RequestLeaseRequest(
                **self.me, request_key=f"{self.random.random()}", want_bytes=256 << 10, waiting_tokens=1))
            if not answer.leases:
                return None
            for event in events:
                if event.lease.lease_id == answer.leases[0].lease_id and event.lease.state != self.pb.OFFERED:
                    lease = event.lease
                    break
        if lease.state != self.pb.GRANTED:
            return None
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.settimeout(5)
        try:
            channel.connect(lease.channel)
            hello = struct.pack("qq128s128s", lease.lease_id, STAGING, lease.capability, self.info.instance_id.encode())
            socket.send_fds(channel, [message(HELLO, hello)], [self.staging])
            data, fds, _, _ = socket.recv_fds(channel, 65536, 256)
        except OSError:  # it was taken back meanwhile
            channel.close()
            return None
        if not data or struct.unpack_from("H", data)[0] != GRANT:
            channel.close()
            return None
        self.granted += 1
        return lease, channel, fds

    def misuse(self):
        got = self.lease()
        if got is None:
            return time.sleep(0.1)
        lease, channel, fds = got
        harm = self.random.choice([self.write, self.store_outside, self.flood, self.babble, self.ignore, self.claim_all])
        try:
            with contextlib.suppress(ConnectionError):  # the donor hangs up
                harm(lease, channel, fds)
            if harm != self.claim_all or self.claimed:
                self.done.append(harm.__name__)
        finally:
            for fd in fds:
                os.close(fd)
            channel.close()

    def write(self, lease, channel, fds):
        """To the donor's arena and its generation words, in every way there is."""
        for fd in list(fds):
            with contextlib.suppress(OSError):
                fds.append(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
        for fd in fds:
            for harm in (lambda: mmap.mmap(fd, 4096, prot=mmap.PROT_WRITE | mmap.PROT_READ),
                         lambda: os.pwrite(fd, b"\xbd" * 4096, 0), lambda: os.ftruncate(fd, 0)):
                with contextlib.suppress(OSError):
                    harm()
                    self.written.append(lease.lease_id)

    def store(self, ticket, offset, size, staging=0):
        return message(STORE, struct.pack("qqqq", ticket, offset, size, staging))

    def store_outside(self, lease, channel, fds):
        size = 4096
        where = self.random.choice([(lease.num_bytes, size, 0), (-size, size, 0), (0, 1 << 62, 0), (0, size, STAGING),
                                    (lease.num_bytes - 1, size, 0), ((1 << 63) - size, size, 0), (0, size, -1)])
        channel.send(self.store(1, *where))
        while data := channel.recv(100):
            assert struct.unpack_from("H", data)[0] == REVOKE, where  # which may cross it

    def flood(self, lease, channel, fds):
        for ticket in range(100000):
            channel.send(self.store(ticket, 0, min(lease.num_bytes, STAGING)) if ticket % 2 else message(RENEW, struct.pack("q", ticket)))

    def babble(self, lease, channel, fds):
        for ticket in range(1, 1000):
            data = bytearray(self.store(ticket, 0, 4096))
            for _ in range(self.random.randrange(3)):
                data[self.random.randrange(len(data))] = self.random.randrange(256)
            channel.send(bytes(data))

    def ignore(self, lease, channel, fds):
        """Neither releases nor stops to write when it is revoked."""
        with contextlib.suppress(grpc.RpcError):  # it may have ended
            self.broker.RevokeLease(self.pb.RevokeLeaseRequest(lease_id=lease.lease_id))
        for ticket in range(1, 1000000):
            channel.send(self.store(ticket, 0, 4096))
            channel.recv(100)

    def claim_all(self, lease, channel, fds):
        """Other people's leases, and their ends."""
        with contextlib.closing(self.watch()) as (_, first):
            others = [each for each in first.snapshot.leases if each.borrower != "mallory"]
        self.claimed += [each.lease_id for each in others]
        for each in others:
            for state in (self.pb.RELEASED, self.pb.FENCED, self.pb.GRANTED):
                with contextlib.suppress(grpc.RpcError):
                    lease = self.pb.Lease(lease_id=each.lease_id, donor="mallory", donor_instance=self.info.instance_id,
                                          state=state, epoch=7)
                    self.broker.ReportLease(self.pb.ReportLeaseRequest(**self.me, lease=lease))
                    if state == self.pb.GRANTED:  # of one that has ended meanwhile the others are no news
                        self.written.append(("report", each.lease_id))
            self.pretend(each)
            each.borrower, each.borrower_instance = "mallory", self.info.instance_id
        self.info.registration += 1
        self.broker.Register(self.pb.RegisterRequest(engine=self.info, token=self.token, leases=others))
        with contextlib.closing(self.watch()) as (_, first):
            stolen = {each.lease_id for each in first.snapshot.leases if each.borrower == "mallory"} & set(self.claimed)
        self.written += stolen

    def pretend(self, lease):
        """To be its donor, whose instance everybody knows: to hear the capability, to report the end."""
        donor = {"instance_id": lease.donor_instance, "token": self.token}
        with contextlib.suppress(grpc.RpcError):
            with contextlib.closing(self.watch(**donor)) as (_, first):
                self.written.append(("capability", first.snapshot.leases[0].capability))
        with contextlib.suppress(grpc.RpcError):
            self.broker.ReportLease(self.pb.ReportLeaseRequest(
                name=lease.donor, incarnation=self.me["incarnation"], **donor,
                lease=self.pb.Lease(lease_id=lease.lease_id, donor=lease.donor, donor_instance=lease.donor_instance,
                                    state=self.pb.RELEASED)))
            self.written.append(("report", lease.lease_id))

    def stop(self):
        self.ending.set()
        self.broker.Deregister(self.pb.DeregisterRequest(
            name="mallory", instance_id=self.info.instance_id, token=self.token))
        os.close(self.staging)


def test_a_borrower_that_means_harm_does_none(leasing, stubs, talks, seed):
    leasing.begin()
    leasing.engine("donor", DONOR)
    leasing.engine("chat", ARENA)
    leasing.ready("donor", "chat")
    load = leasing.load(stubs, talks, "donor", "chat", clients=2).until(hits(leasing, "chat"), "hits in leases")
    mallory = Mallory(leasing, seed)
    end = time.monotonic() + BOUND
    while len(set(mallory.done)) < 6 and time.monotonic() < end:
        mallory.misuse()
    print(f"{load.asked} answers; {mallory.granted} leases misused: {mallory.done}")
    assert mallory.written == [] and len(set(mallory.done)) == 6
    mallory.stop()
    wait_until(lambda: not any("mallory" in lease for lease in leasing.leases()), WAIT, "what was lent to it is back")
    load.until(hits(leasing, "chat"), "hits in leases all the same").stop()
    reclaims = leasing.count("donor", "swiftcache_reclaim_seconds_count")
    assert 0 < reclaims == leasing.count("donor", "swiftcache_reclaim_seconds_bucket", le=f"{RECLAIM}")
    leasing.finish()


@pytest.mark.parametrize("remaps", [True, False], ids=["remapped", "not_remapped"])
def test_what_a_borrower_goes_on_to_see_of_its_donor(leasing, stubs, talks, remaps):
    """It keeps all that it was shown, whole files: what changes there after the lease is its donor's work."""
    leasing.begin()
    leasing.engine("donor", DONOR, *["--remap_on_return"] * remaps)
    leasing.ready("donor")
    mallory, got = Mallory(leasing, seed=1), []
    wait_until(lambda: got.append(mallory.lease()) or got[-1], WAIT, "it has a lease")
    lease, channel, fds = got[-1]
    sizes = [os.fstat(fd).st_size for fd in fds[1:]]  # the first has generation words
    assert (sum(sizes) == lease.num_bytes) == remaps, sizes
    shown = [mmap.mmap(fd, size, prot=mmap.PROT_READ) for fd, size in zip(fds[1:], sizes)]
    channel.close()
    wait_until(lambda: not any("mallory" in lease for lease in leasing.leases()), WAIT, "what was lent to it is back")
    assert leasing.count("donor", "swiftcache_remap_seconds_count") == remaps
    before = [bytes(each) for each in shown]
    leasing.load(stubs, talks, "donor").answered(50).stop()
    assert ([bytes(each) for each in shown] == before) == remaps
    for fd in fds:
        os.close(fd)
    mallory.stop()
    leasing.finish()
