# SPDX-License-Identifier: Apache-2.0
"""What a server says commands no terminal, wherever swiftcachectl shows it: a server may be anybody's."""
import concurrent.futures
import contextlib
import os
import pty
import subprocess

import grpc
import pytest

CLEAR = "\x1b[2J"


class Gateway(grpc.GenericRpcHandler):
    """And broker: serves one model, and refuses all that it is asked, with a command for terminals."""

    def service(self, details):
        def answer(_, context):
            if not details.method.endswith("/ListModels"):
                context.abort(grpc.StatusCode.NOT_FOUND, f"gone {CLEAR}")
            yield b"\x0a\x03\x0a\x01m"  # ListModelsResponse{models: {name: "m"}}

        return grpc.stream_stream_rpc_method_handler(answer)


@pytest.fixture
def address():
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[Gateway()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_the_error_of_a_turn_that_a_person_typed(binaries, address):
    terminal, typed = pty.openpty()
    with contextlib.ExitStack() as ends:
        ends.callback(os.close, terminal)
        ends.callback(os.close, typed)
        os.write(terminal, b"Hello\n\x04")  # and the end
        chat = subprocess.run([binaries / "swiftcachectl", "chat", f"--gateway={address}"], stdin=typed, capture_output=True,
                              text=True, timeout=60)
    assert chat.returncode == 0, chat.stderr
    assert "NOT_FOUND: gone ?[2J" in chat.stdout and CLEAR not in chat.stdout, chat.stdout


def test_leases_that_the_broker_does_not_know(binaries, address):
    revoke = subprocess.run([binaries / "swiftcachectl", "lease", "revoke", "1", "2", f"--broker={address}"], capture_output=True,
                            text=True, timeout=60)
    assert revoke.returncode == 1
    assert revoke.stderr.count("gone ?[2J") == 2 and CLEAR not in revoke.stderr, revoke.stderr
