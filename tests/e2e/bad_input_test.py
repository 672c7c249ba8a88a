# SPDX-License-Identifier: Apache-2.0
"""What a user can get wrong: one clear line, the right code, and nothing lost."""
import http.client as http_client
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request

import grpc
import pytest
from conftest import SHARED, TINY, WAIT, wait_until

MODEL = TINY / "tiny-llama-a"


def engine(binaries, *flags, timeout=30):
    argv = [binaries / "swiftcache-engine", "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0", "--broker=", *flags]
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize("flags, wanted", [
    (["--model=nowhere/model.gguf", "--model_name=m"], "nowhere/model.gguf"),
    (["--model_name=m"], "model"),
    ([f"--model={MODEL}", "--model_name=m", "--no_such_flag=1"], "no_such_flag"),
    ([f"--model={MODEL}", "--model_name=m", "--max_num_seqs=0"], "max_num_seqs"),
    ([f"--model={MODEL}", "--model_name=m", "--kv_cache_dtype=f8"], "kv_cache_dtype"),
    ([f"--model={MODEL}", "--model_name=m", "--block_tokens=-4"], "block_tokens"),
    ([f"--model={MODEL}", "--model_name=m", "--kv_cache_bytes=1000"], "kv_cache_bytes"),
    ([f"--model={MODEL}", "--model_name=m", "--kv_cache_bytes=100TiB"], "kv_cache_bytes"),
    ([f"--model={MODEL}", "--model_name=m", "--gpu_memory_utilization=0"], "gpu_memory_utilization"),
    ([f"--model={MODEL}", "--model_name=m", "--gpu_memory_utilization=1.5"], "gpu_memory_utilization"),
    ([f"--model={MODEL}", "--model_name=m", "--max_tpot=-1ms"], "max_tpot"),
    ([f"--model={MODEL}", "--model_name=m", "--lend_reserve=-1"], "lend_reserve"),
    ([f"--model={MODEL}", "--model_name=m", "--lend_reserve=some"], "lend_reserve"),
    ([f"--model={MODEL}", "--model_name=m", "--link_latency=501ms"], "link_latency"),  # else all donors are silent ones
    ([f"--model={MODEL}", "--model_name=m", "--lend=maybe"], "lend"),
    ([f"--model={MODEL}", "--model_name=m", "--borrow=maybe"], "borrow"),
    ([f"--model={MODEL}", "--model_name=m", "--remap_on_return", "--transport=nccl"], "remap_on_return"),
    (["--model=nowhere/model.gguf", "--model_name=m", "--transport=nccl"], "which is of GPUs"),  # before the model is opened
    ([f"--model={MODEL}", "--model_name=a\nb"], "model_name"),
])
def test_engine_refuses_bad_flags_in_one_line(binaries, flags, wanted):
    run = engine(binaries, *flags)
    lines = [line for line in run.stderr.splitlines() if not line.startswith(("I2", "W2", "I1", "W1"))]
    assert run.returncode == (1 if "--kv_cache_bytes=100TiB" in flags else 2), run.stderr  # 1: another may give memory back
    assert "listening" not in run.stdout
    assert len(lines) == 1 and wanted in lines[0], run.stderr


@pytest.mark.parametrize("binary", ["swiftcache-gateway", "swiftcache-broker"])
def test_other_servers_refuse_bad_flags(binaries, binary):
    run = subprocess.run([binaries / binary, "--bogus"], capture_output=True, text=True, timeout=30)
    assert run.returncode == 2
    assert len(run.stderr.splitlines()) == 1 and "bogus" in run.stderr


@pytest.mark.parametrize("binary", ["swiftcache-engine", "swiftcache-gateway", "swiftcache-broker", "swiftcachectl"])
def test_version(binaries, binary):
    run = subprocess.run([binaries / binary, "--version"], capture_output=True, text=True, timeout=30)
    assert run.returncode == 0 and "0.1.0" in run.stdout


def test_a_taken_port_is_one_clear_line(binaries):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags in ([f"--listen={address}", "--http_listen=127.0.0.1:0"],
                      ["--listen=127.0.0.1:0", f"--http_listen={address}"]):
            run = subprocess.run([binaries / "swiftcache-broker", *flags], capture_output=True, text=True, timeout=30)
            assert run.returncode == 1, run.stderr  # it may be free a moment later
            assert address in run.stderr.splitlines()[-1]


def test_every_malformed_model_is_refused_within_a_second(binaries, request):
    bad = SHARED / "golden" / "bad"
    if not bad.exists():
        pytest.skip(f"{bad} is absent")
    cases = [json.loads(line) for line in (bad / "cases.jsonl").read_text().splitlines()]
    cases = [case for case in cases if case["expect"] == "error"]
    assert len(cases) > 100
    if request.config.getoption("--small"):
        cases = cases[::10]
    for case in cases:
        begin = time.monotonic()
        run = engine(binaries, f"--model={bad / case['path']}", "--model_name=m", "--kv_cache_bytes=1MiB")
        assert run.returncode == 2, (case, run.returncode, run.stderr)
        assert "listening" not in run.stdout, case
        assert time.monotonic() - begin < 15, case  # on a busy machine
        last = run.stderr.splitlines()[-1]
        assert len(last) < 1000 and len(last) > 20, case


def http(cluster, path, body, headers=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{cluster.gateway.http}{path}", data=data,
                                     headers={"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("limit", [1000, 17 << 20])
def test_the_limit_of_prompts_is_the_flags(cluster, stubs, limit):
    cluster.gateway = cluster.spawn("swiftcache-gateway", "--broker=127.0.0.1:1", f"--max_prompt_bytes={limit}")
    body = {"model": "m", "prompt": "x" * limit}
    assert http(cluster, "/v1/completions", body)[0] == 503  # as it knows of no model
    status, answer = http(cluster, "/v1/completions", {**body, "prompt": "x" * (limit + 1)})
    assert status == 400 and answer["error"]["param"] == "prompt", answer
    assert f"at most {limit}" in answer["error"]["message"], answer
    pb, rpc = stubs
    with grpc.insecure_channel(cluster.gateway.grpc) as channel:
        stub = rpc.GenerateServiceStub(channel)
        for size, code in ((limit, "UNAVAILABLE"), (limit + (4 << 20), "RESOURCE_EXHAUSTED")):
            with pytest.raises(grpc.RpcError) as error:
                list(stub.Generate(pb.GenerateRequest(model="m", prompt="x" * size), timeout=20))
            assert error.value.code().name == code, error.value


def test_the_limit_of_http_connections_is_the_flags(cluster):
    cluster.gateway = cluster.spawn("swiftcache-gateway", "--broker=127.0.0.1:1", "--max_http_connections=1")
    host, port = cluster.gateway.http.split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT) as first:
        first.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert first.recv(100).startswith(b"HTTP/1.1 100")
        status, text = cluster.gateway.get("/v1/models")
        assert status == 503 and "all 1 connections" in text, text
        assert cluster.gateway.get("/metrics")[0] == 200


def test_bad_http_bodies_get_400_and_name_the_field(tiny):
    base = {"model": "tiny", "prompt": "x", "max_tokens": 2}
    cases = [
        (b"{", None), (b"[]", None), (b"\xff\xfe", None), (b"[" * 100000, None), ({}, "model"),
        ({**base, "prompt": 5}, "prompt"), ({**base, "prompt": ""}, "prompt"), ({**base, "top_p": 7}, "top_p"),
        ({**base, "temperature": "hot"}, "temperature"), (b'{"model":"tiny","prompt":"x","temperature":NaN}', None),
        ({**base, "temperature": -1}, "temperature"), ({**base, "max_tokens": -1}, "max_tokens"),
        ({**base, "n": 0}, "n"), ({**base, "stop": ["x"] * 100000}, "stop"), ({**base, "stop": 5}, "stop"),
        ({**base, "prompt": [1, 2, 10**6]}, "1000000"), ({**base, "prompt": [1, -2]}, "-2"),
        (b'{"model":"tiny","prompt":"\xff\xff","max_tokens":2}', None),
    ]
    for body, field in cases:
        status, reply = http(tiny, "/v1/completions", body)
        shown = str(body)[:80]
        assert status == 400, (shown, status, reply)
        assert reply["error"]["message"], shown
        if field:
            assert field in json.dumps(reply["error"]), (shown, reply)
    assert http(tiny, "/v1/completions", base)[0] == 200


TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_traceparent_of_any_bytes_harms_nobody(tiny):
    body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 2})
    traces = [b"00-a\tb-01", b"00-\x80\xff-01", b"00-" + b"a" * 20_000, TRACE[:9] + b"\t" + TRACE[10:], b"", TRACE]
    for trace in traces:
        client = http_client.HTTPConnection(tiny.gateway.http, timeout=20)
        client.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "traceparent": trace})
        assert client.getresponse().status == 200, trace[:60]
        client.close()
    assert tiny.gateway.child.poll() is None
    wait_until(lambda: TRACE.decode() in tiny.gateway.text(), WAIT, "the log has the last trace")  # a thread writes it
    assert "a" * 1000 not in tiny.gateway.text()


def test_a_model_name_with_newlines_is_not_found_and_forges_no_log_line(tiny):
    status, reply = http(tiny, "/v1/completions", {"model": "a\nE1121 forged line\n", "prompt": "x"})
    assert status == 404
    assert "tiny" in reply["error"]["message"]
    assert "\nE1121 forged" not in tiny.gateway.text()


def test_ten_megabytes_of_prompt_are_refused_quickly_and_others_go_on(tiny):
    begin = time.monotonic()
    status, reply = http(tiny, "/v1/completions", {"model": "tiny", "prompt": "word " * 2_000_000, "max_tokens": 2})
    assert status == 400 and "max_model_len" in reply["error"]["message"], reply
    assert time.monotonic() - begin < 20
    status, _ = http(tiny, "/v1/completions", {"model": "tiny", "prompt": "x" * 10_000_000, "max_tokens": 2})
    assert status == 400
    assert http(tiny, "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 2})[0] == 200


def test_grpc_errors_have_the_right_code_and_name_the_field(tiny, stubs):
    pb, rpc = stubs
    nan = float("nan")
    code = grpc.StatusCode
    base = {"model": "tiny", "prompt": "x"}
    cases = [
        ({"model": "tiny"}, code.INVALID_ARGUMENT, "prompt"),
        ({"model": "tiny", "prompt": ""}, code.INVALID_ARGUMENT, "prompt"),
        ({"model": "tiny", "token_ids": {"ids": [10**6]}}, code.INVALID_ARGUMENT, "1000000"),
        ({"model": "tiny", "token_ids": {"ids": []}}, code.INVALID_ARGUMENT, "empty"),
        ({"model": "nobody", "prompt": "x"}, code.NOT_FOUND, "tiny"),
        ({**base, "sampling": {"top_p": 7}}, code.INVALID_ARGUMENT, "top_p"),
        ({**base, "sampling": {"temperature": nan}}, code.INVALID_ARGUMENT, "temperature"),
        ({**base, "sampling": {"n": 1000}}, code.INVALID_ARGUMENT, "n"),
        ({**base, "sampling": {"max_tokens": 0}}, code.INVALID_ARGUMENT, "max_tokens"),
        ({**base, "sampling": {"logprobs": 99}}, code.INVALID_ARGUMENT, "logprobs"),
        ({**base, "sampling": {"stop": ["s"] * 1000}}, code.INVALID_ARGUMENT, "stop"),
        ({"model": "tiny", "token_ids": {"ids": [5] * 5000}}, code.OUT_OF_RANGE, "max_model_len"),
        ({"model": "tiny", "chat": {"messages": []}}, code.INVALID_ARGUMENT, "messages"),
    ]
    with grpc.insecure_channel(tiny.gateway.grpc) as channel:
        stub = rpc.GenerateServiceStub(channel)
        for fields, wanted, text in cases:
            with pytest.raises(grpc.RpcError) as error:
                list(stub.Generate(pb.GenerateRequest(**fields), timeout=20))
            assert error.value.code() == wanted, (fields, error.value)
            assert text in error.value.details(), (str(fields)[:100], error.value.details())
        with pytest.raises(grpc.RpcError) as error:
            list(stub.Generate(pb.GenerateRequest(**base, sampling={"max_tokens": 500, "ignore_eos": True}),
                               timeout=0.005))  # some machines need 50 ms for all of it
        assert error.value.code() == code.DEADLINE_EXCEEDED
