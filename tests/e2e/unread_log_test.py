# SPDX-License-Identifier: Apache-2.0
"""A log that nobody reads: standard error of every process is one pipe, and it is full."""
import asyncio
import contextlib
import fcntl
import os
import threading

import grpc
import pytest
from conftest import wait_until
from leasing import ARENA, DONOR, RECLAIM, WAIT, hits, leasing, talks  # noqa: F401

REQUESTS = 8000  # a line of about 250 bytes each, in gateway and engine: more than the queue of a process takes


@contextlib.contextmanager
def unread_pipe():
    """(reading end, writing end) of a pipe that takes nothing more."""
    reader, writer = os.pipe()
    flags = fcntl.fcntl(writer, fcntl.F_GETFL)
    fcntl.fcntl(writer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, b"." * 4096)
    except BlockingIOError:
        fcntl.fcntl(writer, fcntl.F_SETFL, flags)
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def full_pipe():
    with unread_pipe() as ends:
        yield ends


async def ask_often(address, stubs, model, requests, at_once=64):
    """Every one is answered."""
    pb, rpc = stubs
    left = iter(range(requests))

    async def ask(stub):
        for i in left:
            call = stub.Generate(pb.GenerateRequest(model=model, token_ids=pb.TokenIds(ids=[i % 500 + 10, 7]),
                                                    sampling=pb.Sampling(max_tokens=1, ignore_eos=True)), timeout=60)
            assert sum([len(message.token_ids) async for message in call]) == 1

    async with grpc.aio.insecure_channel(address) as channel:
        await asyncio.gather(*(ask(rpc.GenerateServiceStub(channel)) for _ in range(at_once)))


def lines_until(reader, condition):
    """Reads the log in a thread of its own, and so sets free those who wait to write."""
    text = bytearray()

    def read():
        while data := os.read(reader, 65536):
            text.extend(data)

    threading.Thread(target=read, daemon=True).start()
    wait_until(lambda: condition(text.decode()), WAIT, "the log says so once it is read")
    return text.decode().lstrip(".").splitlines()


def test_a_log_that_nobody_reads_stops_no_token_and_no_reclaim(leasing, stubs, talks, full_pipe):  # noqa: F811
    reader, leasing.stderr = full_pipe
    leasing.begin()
    donor, chat = leasing.engine("donor", DONOR), leasing.engine("chat", ARENA)
    leasing.ready("donor", "chat")
    asyncio.run(ask_often(leasing.gateway.grpc, stubs, "chat", REQUESTS))
    for process in (leasing.gateway, chat):
        assert process.metric("swiftcache_log_lines_lost_total") > 0
    assert donor.metric("swiftcache_log_lines_lost_total") == 0

    load = leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases")
    ended = leasing.count("donor", "swiftcache_reclaim_seconds_count")
    for lease in leasing.granted():
        leasing.ctl("lease", "revoke", lease, check=False)  # it may have ended meanwhile
    wait_until(lambda: leasing.count("donor", "swiftcache_reclaim_seconds_count") > ended, WAIT, "what was lent is back")
    load.answered(100).until(hits(leasing, "chat"), "hits in leases again").stop()
    in_time = leasing.count("donor", "swiftcache_reclaim_seconds_bucket", le=f"{RECLAIM}")
    assert in_time == leasing.count("donor", "swiftcache_reclaim_seconds_count")

    lines = lines_until(reader, lambda text: text.count("lines are missing here") == 2)
    said = [line for line in lines if "lines are missing here" in line]
    lost = [process.metric("swiftcache_log_lines_lost_total") for process in (leasing.gateway, chat)]  # none since then
    assert sorted(int(line.split("] ")[1].split()[0]) for line in said) == sorted(lost)
    assert sum("ended status=OK" in line for line in lines) > 1000
    leasing.finish()


def test_a_cluster_whose_log_nobody_reads_ends_in_order(cluster, full_pipe):
    cluster.stderr = full_pipe[1]
    cluster.start()
    assert cluster.ctl("generate", "--model=tiny", "--prompt=one two", "--max_tokens=4", "--temperature=0").stdout.strip()
    cluster.stop()  # all with 0
