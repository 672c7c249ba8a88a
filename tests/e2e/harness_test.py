# SPDX-License-Identifier: Apache-2.0
"""What tests and benches stand on: servers that never come up are killed, load that fails is told of, and so are stages that
crashed or did not run."""
import os
import subprocess
import sys

from conftest import ROOT


def test_a_test_whose_thread_dies_fails(tmp_path):
    (tmp_path / "thread_test.py").write_text(
        "import threading\n\n\ndef test_nothing():\n    thread = threading.Thread(target=lambda: 1 / 0)\n    thread.start()\n    thread.join()\n")
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
                         capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "e2e")})
    assert run.returncode == 1 and "ZeroDivisionError" in run.stdout and "1 failed" in run.stdout, run.stdout
