# SPDX-License-Identifier: Apache-2.0
"""deploy/quickstart.sh: talks, leases and ends, serves until it is told to stop, leaves nothing, says what is wrong in one line."""
import glob
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import pytest
from conftest import ROOT, TINY, WAIT, wait_until

SCRIPT = ROOT / "deploy" / "quickstart.sh"

# Whoever runs these tests in the background may have had Ctrl-C ignored. No preexec_fn does this: with one Python forks, and
# gRPC's poller, which begins anew in the child, may abort it there (github.com/grpc/grpc/pull/43157).
INTERRUPTIBLE = ["env", "--default-signal=INT"]


def leftovers(folder):
    """Processes of ours, shared memory and temporary files."""
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()
    ours = [c for c in commands if "bin/swiftcache-" in c and ":5005" in c]
    sockets = sorted(glob.glob("/tmp/swiftcache-shm.*"))
    return ours, sorted(glob.glob("/dev/shm/*swiftcache*")), sockets, sorted(p.name for p in pathlib.Path(folder).iterdir())


def nothing_new(environment, before):
    """What an earlier killed engine left may be gone: whoever ends last removes it."""
    return all(set(now) <= set(then) for now, then in zip(leftovers(environment["TMPDIR"]), before))


@pytest.fixture
def environment(binaries, tmp_path, usual_ports):
    if binaries != ROOT / "build" / "release" / "bin":
        pytest.skip("quickstart.sh runs the release binaries")
    folder = tmp_path / "tmp"
    folder.mkdir()
    return {**os.environ, "TMPDIR": str(folder), "http_proxy": "http://127.0.0.1:9"}  # a proxy that does not reach loopback


def quickstart(environment, *args, cwd=ROOT, timeout=600):
    with subprocess.Popen([SCRIPT, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=cwd) as run:
        try:
            out, err = run.communicate(timeout=timeout)
        except BaseException:
            run.terminate()  # it ends its servers, which nobody else does
            raise
    return subprocess.CompletedProcess(run.args, run.returncode, out, err)


def blocks(output, pattern):
    """{donor: the last number of its row}."""
    return {donor: int(number) for donor, number in re.findall(pattern, output)}


def test_a_conversation_outgrows_its_memory_and_goes_on_while_a_neighbour_takes_memory_back(environment):
    before = leftovers(environment["TMPDIR"])
    begin = time.monotonic()
    run = quickstart(environment)
    print(run.stdout)
    print(f"quickstart took {time.monotonic() - begin:.1f} s")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("[ttft") == 4 and run.stderr.count("[ttft") == 2  # chat and generate
    cached = [int(n) for n in re.findall(r"(\d+) from the cache", run.stdout)]
    assert cached[1] > 0 and cached[2] > cached[1]

    leased = blocks(run.stdout, r"leased from (smollm2-\w+) +(\d+) ")
    assert set(leased) == {"smollm2-summary", "smollm2-complete"}
    assert all(number > 0 for number in leased.values()), leased
    assert int(re.search(r"(\d+) found in leased memory", run.stdout).group(1)) > 0
    burst = re.search(r"from smollm2-summary +(\d+) +(\d+)\n", run.stdout.split("== a burst")[1])
    assert int(burst.group(1)) == leased["smollm2-summary"]
    reused = re.search(r"Of the (\d+) tokens of this turn's prompt (\d+) could be reused .*; it computed (\d+)\.", run.stdout)
    assert int(reused.group(2)) == cached[3] and int(reused.group(1)) == cached[3] + int(reused.group(3))
    taken_back = re.search(r"leases it took back: (\d+), after ([\d.]+) ms", run.stdout)
    assert int(taken_back.group(1)) > 0 and float(taken_back.group(2)) > 0
    assert run.stdout.count(" READY ") == 6  # in the tables of status and of top
    assert nothing_new(environment, before), leftovers(environment["TMPDIR"])


def test_ctrl_c_in_the_middle_leaves_nothing(environment):
    before = leftovers(environment["TMPDIR"])
    child = subprocess.Popen([*INTERRUPTIBLE, SCRIPT], stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    line = ""
    while "== a burst" not in line:
        line = child.stdout.readline()
        assert line, "ended early"
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    child.stdout.read()
    assert child.wait(30) == 130
    wait_until(lambda: nothing_new(environment, before), WAIT, "nothing is left")


def test_a_relative_model_path_is_the_callers(environment):
    run = quickstart(environment, "--model", "tiny-llama-a", cwd=TINY)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("[ttft") == 3
    assert run.stdout.count(" READY ") == 6  # in the tables of status and of top


def test_help_is_there_from_every_folder(tmp_path):
    run = subprocess.run([os.path.relpath(SCRIPT, tmp_path), "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "deploy/quickstart.sh --serve" in run.stdout and "--model PATH" in run.stdout


def test_a_taken_port_is_one_clear_line(environment):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 50062))
        taken.listen()
        run = quickstart(environment)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith("quickstart: port 50062 is taken")


def serve(environment):
    """With what it has said, to its last line."""
    child = subprocess.Popen([*INTERRUPTIBLE, SCRIPT, "--serve", f"--model={TINY / 'tiny-llama-a'}"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    said = line = ""
    while "stops everything" not in line:
        line = child.stdout.readline()
        assert line, "ended early"
        said += line
    return child, said


def test_serve_serves_until_it_is_told_to_stop_and_a_second_ctrl_c_does_not_cut_that_short(environment):
    before = leftovers(environment["TMPDIR"])
    child, said = serve(environment)
    assert said.index("export no_proxy=127.0.0.1") < said.index("curl")  # environment has a proxy
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    line = ""
    while "quickstart: stopping" not in line:
        line = child.stderr.readline()
        assert line, "ended without a word"
    os.killpg(child.pid, signal.SIGINT)
    child.stdout.read()
    assert child.wait(30) == 130
    assert "quickstart: stopping" not in child.stderr.read()
    wait_until(lambda: nothing_new(environment, before), WAIT, "nothing is left")


def test_a_reader_that_goes_away_leaves_nothing(environment):
    before = leftovers(environment["TMPDIR"])
    child = subprocess.Popen([SCRIPT, "--serve", f"--model={TINY / 'tiny-llama-a'}"], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, env=environment)
    while "== starting" not in child.stdout.readline():
        assert child.poll() is None
    child.stdout.close()
    assert child.wait(60) != 0
    wait_until(lambda: nothing_new(environment, before), WAIT, "nothing is left")


def test_where_a_request_fails_the_logs_are_kept(environment):
    before = leftovers(environment["TMPDIR"])
    run = quickstart({**environment, "SWIFTCACHE_GATEWAY": "127.0.0.1:9"}, f"--model={TINY / 'tiny-llama-a'}")
    assert run.returncode == 1 and "127.0.0.1:9" in run.stderr, run.stderr
    folder = pathlib.Path(re.search(r"all logs are in (\S+)", run.stderr).group(1))
    assert {log.stem for log in folder.iterdir()} == {"broker", "gateway", "smollm2-chat", "smollm2-summary", "smollm2-complete"}
    assert "draining" in (folder / "smollm2-chat.log").read_text()  # to the end
    assert nothing_new(environment, before), leftovers(environment["TMPDIR"])


def test_a_process_that_dies_under_serve_is_named_and_its_log_is_kept(environment):
    before = leftovers(environment["TMPDIR"])
    child, _ = serve(environment)
    processes = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    victim, = [p for p in processes if "--listen=127.0.0.1:50062" in p]
    os.kill(int(victim.split()[0]), signal.SIGKILL)
    child.stdout.read()
    error = child.stderr.read()
    assert child.wait(30) == 2
    assert "quickstart: smollm2-summary ended by itself (exit code 137)" in error
    folder = pathlib.Path(re.search(r"all logs are in (\S+)", error).group(1))
    assert "serves smollm2-summary" in (folder / "smollm2-summary.log").read_text()
    wait_until(lambda: nothing_new(environment, before), WAIT, "nothing is left")
