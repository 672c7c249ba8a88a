# SPDX-License-Identifier: Apache-2.0
"""Many streams with random cancellations and disconnects: nothing lost, nothing leaked."""
import asyncio
import concurrent.futures
import json
import pathlib
import random
import re
import time

import grpc
import pytest
from conftest import TINY, WAIT, wait_until


def rss_mib(process):
    with open(f"/proc/{process.child.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


class Load:
    """`streams` clients at once for `seconds`, which may be set anew: gRPC and HTTP, some cancelled, some cut off."""

    def __init__(self, cluster, stubs, streams, seconds, seed):
        self.cluster, self.stubs, self.streams, self.seconds = cluster, stubs, streams, seconds
        self.random = random.Random(seed)
        self.done = self.cancelled = 0
        self.begun = time.monotonic()
        self.errors = []

    def run(self):
        self.begun = time.monotonic()
        asyncio.run(self._all())
        print(f"load: {self.done} finished, {self.cancelled} cancelled, {len(self.errors)} errors")
        return self

    async def _all(self):
        async with grpc.aio.insecure_channel(self.cluster.gateway.grpc) as channel:
            stub = self.stubs[1].GenerateServiceStub(channel)
            await asyncio.gather(*(self._client(stub) for _ in range(self.streams)))

    def seconds_so_far(self):
        return time.monotonic() - self.begun

    async def _client(self, stub):
        while self.seconds_so_far() < self.seconds:
            ids = [self.random.randrange(20, 500) for _ in range(self.random.randrange(1, 120))]
            tokens = self.random.randrange(1, 60)
            stop_after = self.random.randrange(0, tokens) if self.random.random() < 0.3 else None
            try:
                one = self._http if self.random.random() < 0.3 else self._grpc
                if await one(stub, ids, tokens, stop_after):
                    self.done += 1
                else:
                    self.cancelled += 1
            except (grpc.RpcError, OSError, EOFError, AssertionError) as error:
                self.errors.append(repr(error)[:300])

    async def _grpc(self, stub, ids, tokens, stop_after):
        pb = self.stubs[0]
        request = pb.GenerateRequest(model="tiny", token_ids=pb.TokenIds(ids=ids),
                                     sampling=pb.Sampling(max_tokens=tokens, ignore_eos=True, seed=1))
        call, got = stub.Generate(request), 0
        async for message in call:
            got += len(message.token_ids)
            if stop_after is not None and got >= stop_after:
                call.cancel()
                return False
        assert got == tokens, (got, tokens)
        return True

    async def _http(self, _, ids, tokens, stop_after):
        host, port = self.cluster.gateway.http.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            body = json.dumps({"model": "tiny", "prompt": ids, "max_tokens": tokens, "ignore_eos": True, "stream": True,
                               "stream_options": {"include_usage": True}}).encode()
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                         b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head, json.loads(await reader.read())  # no token had text yet: no stream had begun
            seen, used = 0, None
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    seen += 1
                    used = event.get("usage") or used
                    if stop_after is not None and seen > stop_after:
                        return False  # a disconnect in the middle
            assert used and used["completion_tokens"] == tokens, (used, tokens)
            return True
        finally:
            writer.close()


def test_streams_with_cancellations_leak_no_block_and_no_memory(cluster, stubs, request):
    small, long = request.config.getoption("--small"), request.config.getoption("--long")
    streams = 8 if small else 64
    seconds = 10 if small else 180 if long else 20
    engine = cluster.start("--max_num_seqs=16", "--kv_cache_bytes=512KiB")
    warm = Load(cluster, stubs, streams, max(4, seconds / 4), seed=1).run()
    memory = {p: rss_mib(p) for p in (engine, cluster.gateway, cluster.broker)}
    load = Load(cluster, stubs, streams, seconds, seed=2).run()
    assert warm.errors + load.errors == []
    assert load.done > streams and load.cancelled > 0
    wait_until(lambda: engine.metric("vllm:num_requests_running") == 0, WAIT, "everything ended")
    blocks = {k: v for k, v in engine.metrics().items() if k.startswith("swiftcache_kv_blocks")}
    assert sum(v for k, v in blocks.items() if 'state="used"' in k) == 0, blocks
    grown = {pathlib.Path(p.child.args[0]).name: rss_mib(p) - before for p, before in memory.items()}
    print(f"memory grown by (MiB): {grown}")
    if not small:  # the sanitizers keep freed memory in quarantine
        assert max(grown.values()) < 16, grown


def test_kills_in_the_middle_cost_only_what_had_begun_on_the_killed_engine(cluster, stubs, request):
    """The broker, which comes back after a while; then one of two engines, which does not."""
    if request.config.getoption("--small"):
        pytest.skip("the sanitized cluster has one engine: a second would take its processors")
    streams, seconds = 64, 180 if request.config.getoption("--long") else 12
    flags = ("--max_num_seqs=16", "--kv_cache_bytes=512KiB")
    kept = cluster.start(*flags)
    killed = cluster.start_engine(TINY / "tiny-llama-a", "tiny", *flags)
    wait_until(lambda: cluster.ctl("status").stdout.count("READY") == 2, WAIT, "two engines ready")
    load = Load(cluster, stubs, streams, seconds + 2 * WAIT, seed=3)  # at the most: it ends soon after the second fault
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(load.run)
        time.sleep(seconds / 4)
        where = {"listen": cluster.broker.grpc, "http": cluster.broker.http}
        cluster.broker.kill()
        time.sleep(seconds / 4)
        cluster.start_broker(**where)
        wait_until(lambda: cluster.ctl("status", check=False).stdout.count("READY") == 2, WAIT, "both are in the new table")
        assert load.errors == []
        load.seconds = load.seconds_so_far() + seconds / 4  # however long the broker took
        killed.kill()
        running.result()
    assert load.done > streams and load.cancelled > 0
    assert len(load.errors) < streams  # often some five, and now and then nothing had begun there
    for error in load.errors:
        assert re.search(r"engine tiny-2 was lost after [1-9]\d* tokens were sent", error), error
        assert "StatusCode.UNAVAILABLE" in error or "'code': 'unavailable'" in error, error
    wait_until(lambda: kept.metric("vllm:num_requests_running") == 0, WAIT, "everything ended")
    assert kept.metric("swiftcache_kv_blocks", state="used") == 0
