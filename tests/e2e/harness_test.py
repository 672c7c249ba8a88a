# SPDX-License-Identifier: Apache-2.0
"""What tests and benches stand on: servers that never come up are killed, load that fails is told of, and so are stages that
crashed or did not run."""
import os
import pathlib
import subprocess
import sys
import time

import conftest
import grpc
import pytest
from conftest import ROOT, Process

sys.path.insert(0, str(ROOT / "tests" / "bench"))
from sides import beside  # noqa: E402


def runs(pid):
    """A child that has ended and waits for its parent is gone, too."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("said", ["", "listen", "I listen somewhere\\n"])
def test_a_server_that_never_says_where_it_listens_is_killed(said, tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "WAIT", 0.3)
    with pytest.raises(pytest.fail.Exception, match="sh printed"):
        Process(["sh", "-c", f"echo $$ >{tmp_path}/pid; printf '{said}'; exec sleep 1000"], tmp_path / "log")
    assert not runs((tmp_path / "pid").read_text().strip())


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
