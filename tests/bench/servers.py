# SPDX-License-Identifier: Apache-2.0
"""Servers asked through OpenAI's HTTP, to be compared: ours, llama-server, vLLM's on CPUs."""
import os
import pathlib
import socket
import subprocess
import urllib.request

from sides import Side
from talk import Answer

from conftest import CACHE, wait_until  # of tests/e2e, which sides puts on the path


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def add_llama_flag(parser):
    parser.add_argument("--llama", type=pathlib.Path, default=CACHE / "llama.cpp-11434/build/bin", help="folder of llama-server")


def llama_missing(args):
    """Why there is no llama-server, or None."""
    server = args.llama / "llama-server"
    return None if server.exists() else f"no {server}; tests/bench/llama.sh builds it"


class Ours(Side):
    """A cluster asked over HTTP."""

    def ask(self, messages, tokens, model="chat", **more):
        return Answer(self.cluster.gateway.http, model, messages, tokens, **more)


class Peer:
    """Another's server, which answers once `start` has returned."""

    def __init__(self, name):
        self.name, self.port = name, free_port()
        self.address = f"127.0.0.1:{self.port}"

    def start(self, folder, argv, seconds, environment=None):
        with open(folder / f"{self.name}.log", "w") as log:
            self.child = subprocess.Popen([str(a) for a in argv], stdout=log, stderr=log, env={**os.environ, **(environment or {})})
        try:
            wait_until(self.healthy, seconds, lambda: f"{self.name} answers: {pathlib.Path(log.name).read_text()[-2000:]}")
        except BaseException:  # nobody else knows it yet
            self.stop()
            raise

    def healthy(self):
        try:
            return urllib.request.urlopen(f"http://{self.address}/health").status == 200
        except OSError:
            return False

    def ask(self, prompt, tokens, model="chat", **more):
        return Answer(self.address, model, prompt, tokens, **more)

    def stop(self):
        self.child.terminate()
        try:
            self.child.wait(30)
        finally:
            self.child.kill()


class Llama(Peer):
    """One llama-server with `slots` conversations of bench.slot_tokens each at a time."""

    def __init__(self, bench, name, slots, flags=(), environment=None):
        super().__init__(name)
        self.start(bench.folder, [
            bench.args.llama / "llama-server", "-m", bench.args.model, "--host", "127.0.0.1", "--port", self.port, "-t",
            len(os.sched_getaffinity(0)), "-np", slots, "-c", slots * bench.slot_tokens, "--no-webui", *flags], 120, environment)


class Vllm(Peer):
    """vLLM with a GiB of KV memory and a thread on each allowed CPU: by itself it leaves some out. It has the weights as bf16, made
    of the same file, and compiles at its first start."""

    def __init__(self, bench, name):
        super().__init__(name)
        python = bench.args.vllm / "bin/python"
        environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
                       "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))))}
        folder = bench.folder / "vllm-model"
        subprocess.run([python, pathlib.Path(__file__).parent / "hf_folder.py", bench.args.model, folder], check=True,
                       capture_output=True, env={**os.environ, **environment})
        self.start(bench.folder, [
            python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", "chat", "--host",
            "127.0.0.1", "--port", self.port, "--max-model-len", bench.slot_tokens], 600, environment)


class TwoLlamas:
    """One llama-server for each model, as an operator would run two on one machine."""

    def __init__(self, bench, name, environment=None):
        self.name = name
        self.servers = {"chat": Llama(bench, f"{name}-chat", 2, environment=environment),
                        "donor0": Llama(bench, f"{name}-busy", 1, environment=environment)}

    def ask(self, messages, tokens, model="chat"):
        return self.servers[model].ask(messages, tokens)

    def stop(self):
        for server in self.servers.values():
            server.stop()
