# SPDX-License-Identifier: Apache-2.0
"""Existing clients, unmodified: the openai package, gRPC from the proto files, gRPC from reflection, a load driver."""
import concurrent.futures
import json
import subprocess
import sys
import urllib.request

import grpc
import pytest
from conftest import SHARED, TINY, WAIT, wait_until


def test_openai_client_chats_and_streams(tiny):
    import openai
    client = openai.OpenAI(base_url=f"http://{tiny.gateway.http}/v1", api_key="none")
    assert [m.id for m in client.models.list()] == ["tiny"]
    messages = [{"role": "user", "content": "the cat"}]
    whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=12, temperature=0)
    parts = list(client.chat.completions.create(model="tiny", messages=messages, max_tokens=12, temperature=0,
                                                stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in parts if c.choices)
    assert text == whole.choices[0].message.content
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens > 0
    assert whole.choices[0].finish_reason in ("length", "stop")


def test_openai_client_completes_with_logprobs_n_and_stop(tiny):
    import openai
    client = openai.OpenAI(base_url=f"http://{tiny.gateway.http}/v1", api_key="none")
    reply = client.completions.create(model="tiny", prompt="one two", max_tokens=8, temperature=0, logprobs=2, n=2,
                                      extra_body={"ignore_eos": True})
    assert len(reply.choices) == 2
    assert reply.choices[0].text == reply.choices[1].text
    assert len(reply.choices[0].logprobs.token_logprobs) == 8
    text = reply.choices[0].text
    stop = text[len(text) // 2:][:2]
    cut = client.completions.create(model="tiny", prompt="one two", max_tokens=8, temperature=0, stop=[stop],
                                    extra_body={"ignore_eos": True})
    assert cut.choices[0].text == text[:text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_an_answer_that_a_stop_string_ends_is_ended_at_the_engine_while_the_other_goes_on(tiny):
    import openai
    client = openai.OpenAI(base_url=f"http://{tiny.gateway.http}/v1", api_key="none")

    def texts(**more):
        reply = client.completions.create(model="tiny", prompt="one two", max_tokens=200, temperature=1, seed=7, n=2,
                                          extra_body={"ignore_eos": True}, **more)
        return [choice.text for choice in reply.choices]

    kept, cut = texts()
    stop = next(cut[i:i + 3] for i in range(len(cut)) if cut[i:i + 3] not in kept)

    def ended_early():
        before = tiny.engine.metric("vllm:generation_tokens_total")
        assert texts(stop=[stop]) == [kept, cut[:cut.index(stop)]]
        return tiny.engine.metric("vllm:generation_tokens_total") - before < 300

    wait_until(ended_early, WAIT, "the engine to hear of it before it has computed both")


def test_openai_client_gets_typed_errors(tiny):
    import openai
    client = openai.OpenAI(base_url=f"http://{tiny.gateway.http}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.completions.create(model="absent", prompt="x")
    with pytest.raises(openai.BadRequestError, match="top_p"):
        client.completions.create(model="tiny", prompt="x", top_p=7)


def test_grpc_client_from_the_proto_files(tiny, stubs):
    pb, rpc = stubs
    golden = json.loads((TINY / "tiny-llama-a" / "golden.jsonl").read_text().splitlines()[3])
    with grpc.insecure_channel(tiny.gateway.grpc) as channel:
        stub = rpc.GenerateServiceStub(channel)
        assert [m.name for m in stub.ListModels(pb.ListModelsRequest()).models] == ["tiny"]
        request = pb.GenerateRequest(model="tiny", token_ids=pb.TokenIds(ids=golden["ids"]), request_id="mine",
                                     sampling=pb.Sampling(temperature=0, max_tokens=5, ignore_eos=True))
        messages = list(stub.Generate(request))
        assert {m.request_id for m in messages} == {"mine"}
        assert sum(len(m.token_ids) for m in messages) == 5
        assert not any(m.HasField("finish_reason") for m in messages[:-1])
        assert messages[-1].finish_reason == pb.LENGTH
        assert messages[-1].usage.prompt_tokens == len(golden["ids"])
        assert messages[-1].usage.completion_tokens == 5
        ids = stub.Tokenize(pb.TokenizeRequest(model="tiny", text="the cat")).token_ids
        assert stub.Detokenize(pb.DetokenizeRequest(model="tiny", token_ids=ids)).text == "the cat"


def test_clients_that_choose_the_same_request_id_do_not_meet(tiny, stubs):
    pb, rpc = stubs
    sampling = pb.Sampling(temperature=0, max_tokens=200, ignore_eos=True)
    request = pb.GenerateRequest(model="tiny", prompt="one two", request_id="same", sampling=sampling)
    with grpc.insecure_channel(tiny.gateway.grpc) as channel:
        stub = rpc.GenerateServiceStub(channel)
        calls = [stub.Generate(request), stub.Generate(request)]
        first = [next(call) for call in calls]  # both live
        lengths = [len(begun.token_ids) + sum(len(m.token_ids) for m in call) for begun, call in zip(first, calls)]
    assert lengths == [200, 200]

    def complete(_):
        body = {"model": "tiny", "prompt": "one two", "max_tokens": 200, "ignore_eos": True}
        http = urllib.request.Request(f"http://{tiny.gateway.http}/v1/completions", data=json.dumps(body).encode(),
                                      headers={"Content-Type": "application/json", "X-Request-Id": "same"})
        with urllib.request.urlopen(http, timeout=60) as reply:
            return reply.status, reply.headers["X-Request-Id"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(complete, range(16))) == {(200, "same")}
    wait_until(lambda: tiny.engine.text().count("request_id=same~") >= 18, WAIT, "the log has all of them")


def test_grpc_client_from_reflection_alone(tiny):
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
    with grpc.insecure_channel(tiny.gateway.grpc) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "swiftcache.v1.GenerateService" in database.get_services()
        pool = DescriptorPool(database)
        method = pool.FindServiceByName("swiftcache.v1.GenerateService").FindMethodByName("Generate")
        request_class, reply_class = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        call = channel.unary_stream("/swiftcache.v1.GenerateService/Generate",
                                    request_serializer=request_class.SerializeToString,
                                    response_deserializer=reply_class.FromString)
        request = request_class(model="tiny", prompt="one two", sampling={"max_tokens": 4, "temperature": 0})
        assert sum(len(m.token_ids) for m in call(request)) > 0


def test_grpc_health_is_per_service(tiny):
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    serving = health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(tiny.gateway.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "swiftcache.v1.GenerateService"):
            assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == serving
        with pytest.raises(grpc.RpcError) as error:
            stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_multiturn_load_driver(tiny):
    driver = SHARED / "tools" / "multiturn.py"
    if not driver.exists():
        pytest.skip(f"{driver} is absent")
    run = subprocess.run([sys.executable, driver, "--base-url", f"http://{tiny.gateway.http}/v1", "--model", "tiny",
                          "--conversations", "4", "--rounds", "3", "--user-tokens", "40", "--output-tokens", "8"],
                         capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "load 0 all" in run.stdout
