# SPDX-License-Identifier: Apache-2.0
"""--max_tpot: what the link to leases is too slow for."""
import json
import urllib.error
import urllib.request

import grpc
import pytest
from leasing import DONOR, WAIT, Client, leasing, pytest_generate_tests, talks  # noqa: F401

SMALL = "--kv_cache_bytes=256KiB"


def test_what_the_link_is_too_slow_for_is_refused_and_what_it_can_is_served(leasing, stubs, talks):
    """Of the long prompt 103 blocks of 16 KiB must lie in leases: 13.5 ms a token by 1 Gbit/s."""
    leasing.begin()
    leasing.engine("donor", DONOR)
    leasing.engine("chat", SMALL, "--stream=lsc", "--link_gbps=1", "--max_tpot=10ms")
    leasing.ready("chat")
    client = Client(leasing.gateway.grpc, stubs)
    assert leasing.count("chat", "swiftcache_requests_refused_total", reason="too_slow") == 0
    assert not any(key.startswith("swiftcache_decode_bound_seconds") for key in leasing.engines["chat"].metrics())
    with pytest.raises(grpc.RpcError) as refusal:
        client.ask("chat", talks.long_prompt, talks.answer_tokens)
    print(refusal.value.details())
    assert refusal.value.code() == grpc.StatusCode.OUT_OF_RANGE
    assert all(part in refusal.value.details() for part in ("at least 13.501ms over shm", "--max_tpot is 10ms", "shorten the prompt"))
    body = json.dumps({"model": "chat", "prompt": talks.long_prompt, "max_tokens": talks.answer_tokens}).encode()
    with pytest.raises(urllib.error.HTTPError) as http:
        urllib.request.urlopen(urllib.request.Request(f"http://{leasing.gateway.http}/v1/completions", body,
                                                      {"Content-Type": "application/json"}), timeout=WAIT)
    assert http.value.code == 400 and json.load(http.value)["error"]["code"] == "context_length_exceeded"
    client.ask("chat", talks.long_prompt[:400], talks.answer_tokens)  # more than own memory holds
    assert leasing.blocks("chat", "leased_in") > 0
    bound = leasing.count("chat", "swiftcache_decode_bound_seconds", transport="shm")
    assert 0 < bound * 1e9 / 8 / 16384 <= 128, bound  # of 128 blocks at most, less those of own memory beside the slots
    assert leasing.count("chat", "swiftcache_requests_refused_total", reason="too_slow") == 2
    client.close()
    leasing.finish()
