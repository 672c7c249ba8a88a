# SPDX-License-Identifier: Apache-2.0
"""Every example of deploy/examples is executed as it stands, says what other clients get, and why it is refused."""
import json
import os
import re
import socket
import subprocess
import sys
import urllib.request

from conftest import ROOT

EXAMPLES = ROOT / "deploy" / "examples"
SAYING = 'a "cat"\\n\n\tof \u00e9'  # what JSON writes otherwise


def output(*argv, code=0, **variables):
    run = subprocess.run([str(a) for a in argv], env={**os.environ, **variables}, capture_output=True, text=True, timeout=300)
    assert run.returncode == code, run.stderr
    return run.stdout if code == 0 else run.stderr


def answer(cluster, path, **body):
    """What the test's own client gets."""
    body = {"model": "tiny", "temperature": 0, **body}
    request = urllib.request.Request(f"http://{cluster.gateway.http}/v1/{path}", data=json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def compiled(folder, sources=EXAMPLES / "cpp"):
    output("cmake", "-S", sources, "-B", folder, "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    output("cmake", "--build", folder, "--parallel", "2")
    return folder / "generate"


def test_curl(tiny):
    lines = [line for line in output(EXAMPLES / "chat.sh", f"http://{tiny.gateway.http}", "tiny", SAYING).split("\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]" and len(lines) > 2
    said = "".join(json.loads(line[len("data: "):])["choices"][0]["delta"].get("content", "") for line in lines[:-1])
    whole = answer(tiny, "chat/completions", max_tokens=60, messages=[{"role": "user", "content": SAYING}])
    assert said == whole["choices"][0]["message"]["content"] != ""


def test_the_openai_package(tiny):
    said = output(sys.executable, EXAMPLES / "chat_openai.py", f"http://{tiny.gateway.http}", "tiny")
    cached = re.findall(r"\[(\d+) prompt tokens, (\d+) of them from the cache\]", said)
    assert len(cached) == 2 and int(cached[1][1]) > 0, cached
    first = answer(tiny, "chat/completions", max_tokens=40, messages=[{"role": "user", "content": "Name a colour."}])
    assert f"tiny> {first['choices'][0]['message']['content']}\n" in said


def test_python_and_c_plus_plus_over_grpc_say_the_same_and_ask_no_proxy(tiny, tmp_path):
    proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": ""}  # where nobody listens
    said = output(sys.executable, EXAMPLES / "generate_grpc.py", tiny.gateway.grpc, "tiny", "one two", **proxy)
    usual = answer(tiny, "completions", max_tokens=40, prompt="one two")
    text, tokens = usual["choices"][0]["text"], usual["usage"]
    assert said == f"{text}\n[{tokens['prompt_tokens']} prompt tokens, {tokens['completion_tokens']} generated]\n"
    assert output(compiled(tmp_path), tiny.gateway.grpc, "tiny", "one two", **proxy) == said
    for program in ([sys.executable, EXAMPLES / "generate_grpc.py"], [tmp_path / "generate"]):
        assert 'model "absent" is not served' in output(*program, tiny.gateway.grpc, "absent", "x", code=1)


def test_over_http_a_refusal_is_said(tiny):
    http = f"http://{tiny.gateway.http}"
    refused = subprocess.run([EXAMPLES / "chat.sh", http, "absent"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 22
    assert 'model "absent" is not served' in json.loads(refused.stdout)["error"]["message"]
    said = output(sys.executable, EXAMPLES / "chat_openai.py", http, "absent", code=1)
    assert "absent" in said and "is not served" in said and "Traceback" not in said


def test_where_nobody_answers_one_line_names_the_address():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        nobody = "127.0.0.1:%d" % held.getsockname()[1]
        for example, address in (("chat_openai.py", f"http://{nobody}"), ("generate_grpc.py", nobody)):
            said = output(sys.executable, EXAMPLES / example, address, code=1)
            assert said.startswith(f"{address}: ") and said.count("\n") == 1, said
