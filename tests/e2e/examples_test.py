# SPDX-License-Identifier: Apache-2.0
"""Every example of deploy/examples is executed as it stands."""
import re
import subprocess
import sys

from conftest import ROOT

EXAMPLES = ROOT / "deploy" / "examples"


def output(*argv, code=0):
    run = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=300)
    assert run.returncode == code, run.stderr
    return run.stdout if code == 0 else run.stderr


def test_curl(tiny):
    lines = [line for line in output(EXAMPLES / "chat.sh", f"http://{tiny.gateway.http}", "tiny", 'a "cat"').split("\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]" and len(lines) > 2


def test_the_openai_package(tiny):
    cached = re.findall(r"\[(\d+) prompt tokens, (\d+) of them from the cache\]",
                        output(sys.executable, EXAMPLES / "chat_openai.py", f"http://{tiny.gateway.http}", "tiny"))
    assert len(cached) == 2 and int(cached[1][1]) > 0, cached


def test_python_and_c_plus_plus_over_grpc_say_the_same(tiny, tmp_path):
    output("cmake", "-S", EXAMPLES / "cpp", "-B", tmp_path, f"-DSWIFTCACHE_PROTO={ROOT / 'proto'}", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    output("cmake", "--build", tmp_path)
    python = [sys.executable, EXAMPLES / "generate_grpc.py"]
    said = output(*python, tiny.gateway.grpc, "tiny", "one two")
    assert re.search(r"\[2 prompt tokens, \d+ generated\]|\[\d+ prompt tokens, 40 generated\]", said), said
    assert output(tmp_path / "generate", tiny.gateway.grpc, "tiny", "one two") == said
    for program in (python, [tmp_path / "generate"]):
        assert 'model "absent" is not served' in output(*program, tiny.gateway.grpc, "absent", "x", code=1)
