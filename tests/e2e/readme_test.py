# SPDX-License-Identifier: Apache-2.0
"""README's commands by hand, as they stand there: four servers, two chats, leases, a stream."""
import re
import subprocess

import pytest

from conftest import ROOT

FIRST = "model=$(deploy/fetch-model.sh)"


def commands():
    """The indented block of README that begins with FIRST."""
    lines = (ROOT / "README.md").read_text().split("\n")
    begin = lines.index("    " + FIRST)
    end = next(i for i in range(begin, len(lines)) if not lines[i].startswith("    "))
    return "\n".join(line[4:] for line in lines[begin:end])


@pytest.fixture
def folder(binaries, tmp_path, usual_ports):
    """Where a clone would be: logs are written here."""
    if binaries != ROOT / "build" / "release" / "bin":
        pytest.skip("README names the release binaries")
    for name in ("build", "deploy"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_the_commands_by_hand_serve_lease_and_stop(folder):
    script = commands()
    assert script.count("swiftcache-engine") == 2 and script.rstrip().split("\n")[-1].startswith('kill "${pids[@]}"')
    ended = '\nfor server in "${pids[@]}"; do wait $server; echo ended=$?; done\nkill $other && echo other=alive'
    script = f"sleep 300 >/dev/null 2>&1 & other=$!\n{script}"  # it is no job of README's
    run = subprocess.run(["bash", "-uc", script + ended], cwd=folder, capture_output=True, text=True, timeout=300)
    logs = {log.name: log.read_text()[-2000:] for log in folder.glob("*.log")}
    assert run.stdout.count("ended=0") == 4 and "other=alive" in run.stdout, (run.stdout, run.stderr, logs)
    assert re.search(r"you> .{50,400} \.\.\. \(\d{3} words\)\n", run.stdout), run.stdout
    assert run.stdout.count("[ttft") + run.stderr.count("[ttft") == 3, (run.stdout, run.stderr)
    assert re.search(r"code +chat|chat +code", run.stdout), ("no lease is listed", run.stdout)
    assert "data: [DONE]" in run.stdout, run.stdout
