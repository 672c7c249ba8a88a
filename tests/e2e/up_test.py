# SPDX-License-Identifier: Apache-2.0
"""swiftcachectl up: a cluster in one command, that leaves nothing behind however it ends."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import urllib.request

import pytest
from conftest import TINY, wait_until


class Up:
    def __init__(self, binaries, *arguments, through=()):
        """`through`: a command that begins it, such as env with what becomes of signals; with preexec_fn Python would fork
        (quickstart_test.py says why that must not be)."""
        self.child = subprocess.Popen([*through, binaries / "swiftcachectl", "up", "--kv_cache_bytes=4MiB", *arguments],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines = []

    def wait_ready(self):
        for line in self.child.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("ready"):
                return
        pytest.fail(f"it ended: {self.lines} {self.child.stderr.read()}")

    def value(self, name):
        return next(line[len(name) + 2:] for line in self.lines if line.startswith(name + ": "))

    def http(self):
        return self.value("gateway").split("HTTP ")[1]

    def servers(self):
        """Process ids of its children, by the names of their logs."""
        found = {}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                log = os.readlink(process / "fd" / "2")
            except OSError:
                continue
            if log.startswith(self.value("logs") + "/"):
                found[pathlib.Path(log).stem] = int(process.name)
        return found

    def end(self, number):
        self.child.send_signal(number)
        out, error = self.child.communicate(timeout=60)
        return self.child.returncode, out, error


@pytest.fixture
def up(binaries):
    started = []

    def start(*arguments, **options):
        started.append(Up(binaries, *arguments, **options))
        return started[-1]

    yield start
    for one in started:
        if one.child.poll() is None:
            one.end(signal.SIGTERM)


def models(url):
    with urllib.request.urlopen(url + "/v1/models", timeout=10) as reply:
        return sorted(model["id"] for model in json.load(reply)["data"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_model_answers_and_a_signal_ends_all(up, number):
    cluster = up(TINY / "tiny-llama-a", through=["env", "--default-signal=HUP"])
    cluster.wait_ready()
    assert models(cluster.http()) == ["tiny-llama-a"]
    body = {"model": "tiny-llama-a", "prompt": "one two", "max_tokens": 4}
    request = urllib.request.Request(cluster.http() + "/v1/completions", data=json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert json.load(reply)["usage"]["completion_tokens"] > 0
    assert sorted(cluster.servers()) == ["broker", "gateway", "tiny-llama-a"]
    code, out, error = cluster.end(number)
    assert code == 0 and "stopping" in out and not error, error
    assert not cluster.servers() and not os.path.exists(cluster.value("logs"))


def test_a_hangup_that_is_ignored_ends_nothing(up):
    cluster = up(TINY / "tiny-llama-a", through=["env", "--ignore-signal=HUP"])
    cluster.wait_ready()
    cluster.child.send_signal(signal.SIGHUP)
    for process in [cluster.child.pid, *cluster.servers().values()]:
        masks = dict(line.split(":\t") for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
                     if line.startswith("Sig"))
        assert int(masks["SigIgn"], 16) & 1 and not int(masks["SigBlk"], 16) & 1, masks
    assert cluster.end(signal.SIGTERM)[0] == 0


def test_what_standard_output_does_not_take_is_told(binaries, up):
    cluster = up(TINY / "tiny-llama-a")
    cluster.wait_ready()
    with open("/dev/full", "w") as full:
        run = subprocess.run([binaries / "swiftcachectl", f"--broker={cluster.value('broker')}", "status"], stdout=full,
                             stderr=subprocess.PIPE, text=True, timeout=60)
    assert run.returncode == 1 and "standard output did not take all of it" in run.stderr
    assert cluster.end(signal.SIGTERM)[0] == 0


def test_a_model_of_a_long_name_is_served(up, tmp_path):
    long = tmp_path / ("a-merged-model-of-many-others-" * 3)
    long.symlink_to(TINY / "tiny-llama-a")
    cluster = up(long)
    cluster.wait_ready()
    assert models(cluster.http()) == [long.name]
    assert cluster.end(signal.SIGTERM)[0] == 0


def ctl(binaries, cluster, *words):
    """What swiftcachectl prints, a JSON object a line."""
    run = subprocess.run([binaries / "swiftcachectl", f"--broker={cluster.value('broker')}", *words, "-o", "json"],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_two_models_under_names_of_ones_own_and_a_second_cluster_beside(binaries, up):
    one = up(f"a={TINY / 'tiny-llama-a'}", f"b={TINY / 'tiny-llama-a'}")
    one.wait_ready()
    assert models(one.http()) == ["a", "b"]
    assert sorted(one.servers()) == ["a", "b", "broker", "gateway"]
    progress = [line.split(" at ")[0] for line in one.lines if ": served by " in line]
    assert progress == ["a: served by a", "b: served by b"]
    status, = ctl(binaries, one, "status")
    assert [(e["engine"], e["model"], e["state"], e["own_bytes"] <= 4 << 20) for e in status["engines"]] == [
        ("a", "a", "READY", True), ("b", "b", "READY", True)]
    assert [frame.keys() for frame in ctl(binaries, one, "top", "--frames=2")] == 2 * [
        {"broker": 0, "engines": 0, "leases": 0, "limits": 0}.keys()]
    leases, = ctl(binaries, one, "lease", "ls")
    assert leases == {"broker": one.value("broker"), "leases": [], "limits": [], "pairs": [], "models": []}
    other = up(TINY / "tiny-llama-a")
    other.wait_ready()  # on other ports
    assert models(other.http()) == ["tiny-llama-a"] and models(one.http()) == ["a", "b"]


def test_the_usual_ports_are_used_where_they_are_free(up, usual_ports):
    cluster = up(TINY / "tiny-llama-a")
    cluster.wait_ready()
    assert cluster.value("gateway") == "gRPC 127.0.0.1:50051, HTTP http://127.0.0.1:8000"
    assert cluster.value("broker") == "127.0.0.1:50050"


def test_every_server_tells_where_its_metrics_are(up):
    cluster = up(TINY / "tiny-llama-a")
    cluster.wait_ready()
    found = [urllib.request.urlopen(url, timeout=30).read().decode() for url in cluster.value("metrics").split()]
    assert [f'program="swiftcache-{name}"' in text for name, text in zip(("broker", "gateway", "engine"), found)] == 3 * [True]


def test_the_line_to_try_works(up):
    cluster = up(TINY / "tiny-llama-a")
    cluster.wait_ready()
    line = cluster.value("try").replace('"stream":true', '"max_tokens":4,"ignore_eos":true')
    run = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert json.loads(run.stdout)["usage"]["completion_tokens"] > 0, run.stdout
    top = next(line.strip() for line in cluster.lines if line.endswith(" top"))
    run = subprocess.run(["sh", "-c", top + " --frames=1"], capture_output=True, text=True, timeout=60, cwd="/")
    assert run.returncode == 0 and "1 engine, " in run.stdout, (top, run.stderr)


def test_ctrl_c_while_a_model_is_loading_ends_all(up):
    cluster = up(TINY / "tiny-llama-a")
    for line in cluster.child.stdout:
        cluster.lines.append(line.rstrip())
        if line.startswith("logs: "):
            break
    code, out, error = cluster.end(signal.SIGINT)
    assert code == 0 and "stopping" in out and not error, error
    assert not cluster.servers() and not os.path.exists(cluster.value("logs"))


def test_a_server_that_does_not_end_is_killed_and_its_log_stays(up):
    cluster = up(TINY / "tiny-llama-a")
    cluster.wait_ready()
    os.kill(cluster.servers()["tiny-llama-a"], signal.SIGSTOP)
    code, out, error = cluster.end(signal.SIGINT)
    assert code == 0 and "tiny-llama-a did not end in time and was killed" in error, error
    assert not cluster.servers() and os.path.exists(cluster.value("logs") + "/tiny-llama-a.log")
    shutil.rmtree(cluster.value("logs"))


def test_a_model_that_is_not_there_starts_nothing(binaries):
    done = subprocess.run([binaries / "swiftcachectl", "up", "/nowhere/model.gguf"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "there is no model at '/nowhere/model.gguf'" in done.stderr and not done.stdout


def test_a_model_that_cannot_be_loaded_ends_it_with_the_engines_words(up, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF and nothing more")
    cluster = up(tmp_path / "broken.gguf")
    out, error = cluster.child.communicate(timeout=60)
    assert cluster.child.returncode == 1 and "broken ended with exit code 2; its log ends: swiftcache-engine: " in error, error
    kept = error[error.index("all logs are in ") + len("all logs are in "):].strip()
    assert sorted(path.name for path in pathlib.Path(kept).glob("*.log")) == ["broken.log", "broker.log", "gateway.log"]
    shutil.rmtree(kept)


def test_an_engine_that_dies_ends_it(up):
    cluster = up(TINY / "tiny-llama-a")
    cluster.wait_ready()
    os.kill(cluster.servers()["tiny-llama-a"], signal.SIGKILL)
    out, error = cluster.child.communicate(timeout=60)
    assert cluster.child.returncode == 1 and "tiny-llama-a ended by signal 9" in error, error
    assert not cluster.servers()
    shutil.rmtree(cluster.value("logs"))


def test_when_it_is_killed_its_servers_end_too(up):
    cluster = up(TINY / "tiny-llama-a")
    cluster.wait_ready()
    cluster.child.kill()
    cluster.child.communicate(timeout=60)
    wait_until(lambda: not cluster.servers(), 60, "its servers end")
    shutil.rmtree(cluster.value("logs"))
