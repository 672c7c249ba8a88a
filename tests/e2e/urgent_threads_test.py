# SPDX-License-Identifier: Apache-2.0
"""The threads that fence leases and give memory back run soon after they wake, whatever else computes."""
import contextlib
import os
import pathlib
import subprocess
import sys

from conftest import WAIT, wait_until

URGENT = -15


def niceness(pid):
    """Of its threads, by their names."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found[(task / "comm").read_text().strip()] = os.getpriority(os.PRIO_PROCESS, int(task.name))
    return found


def test_threads_that_give_memory_back_are_urgent_where_the_system_allows_it(cluster):
    tried = subprocess.run([sys.executable, "-c", f"import os; os.nice({URGENT})"], check=False, capture_output=True)
    allowed, own = tried.returncode == 0, os.getpriority(os.PRIO_PROCESS, 0)
    engine = cluster.start()
    found = niceness(engine.child.pid)
    wanted = own + URGENT if allowed else own
    assert (found["coordinator"], found["channels"]) == (wanted, wanted)
    assert found["step loop"] > own
    says = "the system allows this engine no urgent threads"
    if allowed:
        assert says not in engine.text()
    else:
        wait_until(lambda: says in engine.text(), WAIT, "its line")
