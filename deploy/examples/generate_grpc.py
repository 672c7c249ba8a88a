#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens by gRPC, with nothing but the address: the gateway describes its own API.

  python3 -m venv /tmp/clients && /tmp/clients/bin/pip install grpcio grpcio-reflection
  /tmp/clients/bin/python deploy/examples/generate_grpc.py [HOST:PORT] [MODEL] [PROMPT]
"""
import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

address, model, prompt = (sys.argv[1:] + ["127.0.0.1:50051", "chat", "Water boils at"][len(sys.argv) - 1:])[:3]


def main(channel):
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    method = pool.FindServiceByName("swiftcache.v1.GenerateService").FindMethodByName("Generate")
    Request, Response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    generate = channel.unary_stream("/swiftcache.v1.GenerateService/Generate", request_serializer=Request.SerializeToString,
                                    response_deserializer=Response.FromString)
    request = Request(model=model, prompt=prompt, sampling={"max_tokens": 40, "temperature": 0})
    for response in generate(request):
        print(response.text, end="", flush=True)
    print(f"\n[{response.usage.prompt_tokens} prompt tokens, {response.usage.completion_tokens} generated]")


# Directly: gRPC would ask the proxy of http_proxy for 127.0.0.1, too.
with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
    try:
        main(channel)
    except grpc.RpcError as error:  # the gateway says what it wanted
        sys.exit(f"{address}: {error.code().name}: {error.details()}")
