# SPDX-License-Identifier: Apache-2.0
"""What tests and benches stand on: servers that never come up are killed, load that fails is told of, and so are stages that
crashed or did not run."""
import contextlib
import os
import pathlib
import random
import subprocess
import sys
import time
import types

import conftest
import grpc
import pytest
from conftest import ROOT, TINY, Process

sys.path.insert(0, str(ROOT / "tests" / "bench"))
from sides import Bench, Side, beside, cluster_ratio_interval, ratio_interval  # noqa: E402


def log_of(process):
    with contextlib.suppress(OSError):
        return os.readlink(process / "fd" / "2")


def logs_of_all():
    return {log_of(process) for process in pathlib.Path("/proc").glob("[0-9]*")}


@pytest.mark.parametrize("said", ["", "listen", "I listen somewhere\\n"])
def test_a_server_that_never_says_where_it_listens_is_killed(said, tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "WAIT", 0.3)
    with pytest.raises(pytest.fail.Exception, match="sh printed"):
        Process(["sh", "-c", f"printf '{said}'; exec sleep 1000"], tmp_path / "log")
    assert str(tmp_path / "log") not in logs_of_all()


def test_a_side_that_does_not_come_up_leaves_nothing(binaries, stubs, tmp_path):
    args = types.SimpleNamespace(model=TINY / "tiny-llama-a", threads=1)
    bench = types.SimpleNamespace(binaries=binaries, folder=tmp_path, rpc=stubs[1], args=args)
    with pytest.raises(pytest.fail.Exception, match="no_such_flag"):
        Side(bench, "side", 64, chat_flags=("--no_such_flag",))
    logs = {str(path) for path in tmp_path.glob("*/*.log")}
    assert len(logs) == 3 and not logs & logs_of_all()


def test_one_side_that_cannot_be_stopped_leaves_no_other(tmp_path):
    bench, stopped = Bench(types.SimpleNamespace(bin=tmp_path, seed=1)), []

    class Stuck:
        def stop(self):
            stopped.append(self)
            raise RuntimeError("it does not end")

    for _ in range(3):
        bench.add(Stuck())
    with pytest.raises(RuntimeError, match="does not end"):
        bench.stop_all()
    assert len(stopped) == 3 and not bench.sides


def test_load_that_fails_fails_its_window():
    def ask(ending):
        raise grpc.RpcError("refused")

    with pytest.raises(grpc.RpcError, match="refused"), beside(ask):
        time.sleep(0.01)
    with beside(lambda ending: ending.wait(60) and 7) as answered:
        pass
    assert answered.result() == 7


def test_a_test_whose_thread_dies_fails(tmp_path):
    (tmp_path / "thread_test.py").write_text(
        "import threading\n\n\ndef test_nothing():\n    thread = threading.Thread(target=lambda: 1 / 0)\n    thread.start()\n    thread.join()\n")
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
                         capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "e2e")})
    assert run.returncode == 1 and "ZeroDivisionError" in run.stdout and "1 failed" in run.stdout, run.stdout


def test_what_slows_several_in_a_row_widens_the_interval():
    rng = random.Random(1)
    below = [1.0] * 300
    above = [2.0 if i // 10 in (4, 9, 17) else 1.0 + rng.random() / 100 for i in range(300)]  # three long prompts, ten turns each
    single, blocks = (ratio_interval(above, below, 95, random.Random(2), block=block) for block in (1, 10))
    assert single[0] == blocks[1] == 2.0 and blocks[0] < 1.1, (single, blocks)
    assert single == cluster_ratio_interval([[pair] for pair in zip(above, below)], 95, random.Random(2))


REPORT = """{"testsuites": [{"name": "KvTest", "testsuite": [{"name": "Counts", "result": "COMPLETED"%s}]}]}"""
CTEST = "The following tests FAILED:\n\t  3 - kv_test (Failed)\n\t 12 - exec_test (SEGFAULT)\n"


def tally(folder):
    run = subprocess.run([sys.executable, ROOT / "tests" / "tally.py", folder], capture_output=True, text=True, timeout=60)
    return run.returncode, run.stdout.splitlines()


def stage(folder, name, verdict, log=""):
    (folder / f"{name}.stage").write_text(verdict + "\n")
    (folder / f"{name}.log").write_text(log)


def test_a_binary_that_crashed_is_told_of_beside_a_case_that_failed(tmp_path):
    reports = tmp_path / "release-gtest"
    reports.mkdir()
    (reports / "kv_test.json").write_text(REPORT % ', "failures": [{"failure": "kv_test.cc:7"}]')
    stage(tmp_path, "unit-release", "fail", CTEST)
    code, lines = tally(tmp_path)
    assert code == 1 and lines[-1] == "0 passed, 2 failed", lines
    assert lines[0] == "FAILED  unit-release: KvTest.Counts: kv_test.cc:7" and "exec_test (SEGFAULT); see " in lines[1]
    assert "kv_test" not in lines[1]


def test_a_stage_that_did_not_run_is_listed_with_its_reason(tmp_path):
    stage(tmp_path, "structure", "pass")
    stage(tmp_path, "arm", "skip", "looking\ntests/arm.sh: SKIPPED: no qemu\n")
    assert tally(tmp_path) == (0, ["skipped 1 (stage arm): tests/arm.sh: SKIPPED: no qemu", "1 passed, 0 failed"])
