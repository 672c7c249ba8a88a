#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the start of an engine's process to its first token, with the model's file in the disk cache.

  tests/bench/first_token.py --model MODEL [--bin build/release/bin] [--runs 7] [-- --dtype=f32 ...]

Prints the medians: until it listens for requests (the model is loaded and packed), and until it has answered a prompt
of 32 tokens with one token. Fails where --limit seconds are not met.
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import grpc  # noqa: E402
from conftest import python_stubs  # noqa: E402


def start(args, pb, stub_of):
    """Seconds until it listens, and until the first token."""
    begun = time.monotonic()
    command = [args.bin / "swiftcache-engine", f"--model={args.model}", "--model_name=m", "--broker=",
               "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0", *args.flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            line = process.stdout.readline()
            listens = time.monotonic()
            address = next(word.split("=")[1] for word in line.split() if word.startswith("grpc="))
            with grpc.insecure_channel(address) as channel:
                request = pb.EngineGenerateRequest(request_id="r", token_ids=range(100, 132))
                request.sampling.max_tokens = 1
                answered = None
                while answered is None:
                    try:
                        next(stub_of(channel).Generate(request, timeout=60, wait_for_ready=True))
                        answered = time.monotonic()
                    except grpc.RpcError as error:  # for an instant between the line and the door
                        if error.code() != grpc.StatusCode.UNAVAILABLE:
                            raise
        finally:
            process.terminate()
    return listens - begun, answered - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--limit", type=float, help="seconds that the median to the first token may take")
    parser.add_argument("flags", nargs="*", help="of the engine")
    args = parser.parse_args()
    for path in [args.model] if args.model.is_file() else args.model.iterdir():
        path.read_bytes()  # into the disk cache
    with tempfile.TemporaryDirectory() as stubs:
        python_stubs(stubs)
        from swiftcache.v1 import engine_pb2, engine_pb2_grpc
        runs = [start(args, engine_pb2, engine_pb2_grpc.EngineServiceStub) for _ in range(args.runs)]
    listens, first = (statistics.median(values) for values in zip(*runs))
    print(f"{args.model.name}: listens after {listens:.2f} s, first token after {first:.2f} s "
          f"(of {args.runs} runs: {min(r[1] for r in runs):.2f} to {max(r[1] for r in runs):.2f})")
    if args.limit and first > args.limit:
        sys.exit(f"that is more than {args.limit} s")


main()
