# SPDX-License-Identifier: Apache-2.0
"""Real processes on loopback, port 0 everywhere, tiny models: what the end-to-end tests stand on."""
import contextlib
import hashlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "data" / "tiny"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "swiftcache"
SMOLLM2 = pathlib.Path(os.environ.get("SWIFTCACHE_TEST_MODEL") or CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
WAIT = 60  # seconds for what takes one or two: the machine may be busy
DRAIN = "--drain_timeout=60s"  # likewise for requests under way
SHARED = pathlib.Path(os.environ.get("SWIFTCACHE_SHARED", ROOT.parent / "shared"))


def pytest_addoption(parser):
    parser.addoption("--bin", default="build/release/bin", help="folder of the binaries under test")
    parser.addoption("--small", action="store_true", help="smaller loads (sanitizers)")
    parser.addoption("--long", action="store_true", help="full lengths")


def pytest_configure(config):
    config.addinivalue_line("markers", "last: runs when all others have run, of which it tells")
    # A test whose thread died has shown less than it says.
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnhandledThreadExceptionWarning")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(scope="session")
def binaries(request):
    return (ROOT / request.config.getoption("--bin")).resolve()


def wait_until(condition, seconds, what):
    """Poll until condition() is true; fail with `what` after `seconds`: a text, or a function that makes it then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    pytest.fail(f"not within {seconds} s: {what() if callable(what) else what}")


USUAL_PORTS = (50050, 50051, 50061, 50062, 50063, 8000, 9180, 9181, 9182, 9183)


def listens(port):
    with socket.socket() as client:
        connected = client.connect_ex(("127.0.0.1", port)) == 0
        return connected and client.getsockname() != client.getpeername()  # TCP may connect a free port to itself


@contextlib.contextmanager
def held_ports(ports):
    """Nobody gets one of these who asks the kernel for any port, and who asks for one of them by its number may listen there:
    sockets that are bound, reuse addresses as servers do, and never listen."""
    with contextlib.ExitStack() as sockets:
        for port in ports:
            held = sockets.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", port))
        yield


def can_listen(port):
    try:
        with held_ports([port]):
            return True
    except OSError:
        return False


@pytest.fixture
def usual_ports():
    """Where servers listen unless told otherwise. A client of an earlier test may have had one as its own, which the kernel
    holds for a minute after the connection's end. A server there is another cluster's: these tests want it gone."""
    assert not any(map(listens, USUAL_PORTS)), f"servers listen already: {[p for p in USUAL_PORTS if listens(p)]}"
    wait_until(lambda: all(map(can_listen, USUAL_PORTS)), 90, lambda: f"held: {[p for p in USUAL_PORTS if not can_listen(p)]}")
    with held_ports(USUAL_PORTS):
        yield


def instance_of(token):
    """The instance id of an engine that has this token (common/base/instance_token.h)."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def go_duration(text):
    """Seconds of absl's notation: 1m30s, 1.5ms, 20us."""
    units = {"m": 60, "s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)(ms|us|ns|s|m)", text))


class Process:
    """One server: its addresses (from its first line on standard output), its log, its end."""

    def __init__(self, argv, log, stderr=None):
        """`stderr`: a descriptor that gets its log instead of the file."""
        self.log = log
        with open(log, "w") as out:
            self.child = subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=stderr or out, text=True)
        line = self._first_line(2 * WAIT)
        found = re.search(r"listening grpc=(\S+) http=(\S+)", line)
        if not found:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(WAIT)
            self.kill()
            pytest.fail(f"{argv[0]} printed {line!r}, exit code {self.child.returncode}, log: {self.text()[-2000:]}")
        self.grpc, self.http = found.groups()

    def _first_line(self, seconds):
        """What there is of it when its time is over: then it is killed."""
        patience = threading.Timer(seconds, self.child.kill)
        patience.start()
        try:
            return self.child.stdout.readline()
        except BaseException:
            self.kill()
            raise
        finally:
            patience.cancel()

    def text(self):
        return pathlib.Path(self.log).read_text()

    def get(self, path, timeout=WAIT):
        """(status, body) of an HTTP GET."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=timeout) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self):
        """{'name{labels}': value} of /metrics."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line and not line.startswith("#")]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}

    def metric(self, name, **labels):
        """Sum of a metric over what has these labels."""
        values = [v for k, v in self.metrics().items()
                  if re.split(r"[{ ]", k)[0] == name and all(f'{label}="{value}"' in k for label, value in labels.items())]
        assert values, f"{name} {labels} is not exported"
        return sum(values)

    def wait_healthy(self, seconds=WAIT):
        def healthy():
            if self.child.poll() is not None:
                pytest.fail(f"ended with {self.child.returncode}: {self.text()[-2000:]}")
            return self.get("/health")[0] == 200

        wait_until(healthy, seconds, f"{self.child.args[0]} healthy")
        return self

    def kill(self):
        self.child.kill()
        self.child.wait()

    def stop(self, seconds=2 * WAIT):
        """SIGTERM; the exit code."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            pytest.fail(f"{self.child.args} did not end within {seconds} s of SIGTERM; log: {self.text()[-3000:]}")


class Cluster:
    """A broker, a gateway and engines, which meet in a folder of their own; everything is stopped at the end and must end
    with 0."""

    def __init__(self, binaries, folder):
        self.binaries, self.folder, self.all = binaries, folder, []
        self.sockets = tempfile.TemporaryDirectory(prefix="sc")  # short: a socket's path has at most 107 characters
        self.shm_dir = self.sockets.name
        self.broker = self.gateway = None
        self.stderr = None  # a descriptor for the logs of all that is spawned, instead of files

    def spawn(self, binary, *flags, listen="127.0.0.1:0", http="127.0.0.1:0"):
        argv = [self.binaries / binary, f"--listen={listen}", f"--http_listen={http}", *flags]
        process = Process(argv, self.folder / f"{len(self.all)}-{binary}.log", self.stderr)
        self.all.append(process)
        return process

    def start_broker(self, *flags, **where):
        self.broker = self.spawn("swiftcache-broker", *flags, **where)
        return self.broker.wait_healthy()

    def start_gateway(self, **where):
        self.gateway = self.spawn("swiftcache-gateway", f"--broker={self.broker.grpc}", DRAIN, **where)
        return self.gateway

    def start_engine(self, model=TINY / "tiny-llama-a", name="tiny", *flags, wait=True, **where):
        engine = self.spawn("swiftcache-engine", f"--model={model}", f"--model_name={name}",
                            f"--broker={self.broker.grpc}", f"--shm_dir={self.shm_dir}", "--kv_cache_bytes=16MiB",
                            "--threads=1", DRAIN, *flags, **where)
        return engine.wait_healthy() if wait else engine

    def start(self, *flags):
        self.start_broker()
        self.start_gateway()
        engine = self.start_engine(TINY / "tiny-llama-a", "tiny", *flags)
        self.wait_models("tiny")
        return engine

    def wait_models(self, *names):
        wait_until(lambda: all(f'"{n}"' in self.gateway.get("/v1/models")[1] for n in names), WAIT, f"{names} served")

    def ctl(self, *args, check=True, timeout=60):
        run = subprocess.run([self.binaries / "swiftcachectl", *args], capture_output=True, text=True, timeout=timeout,
                             env={**os.environ, "SWIFTCACHE_GATEWAY": self.gateway.grpc if self.gateway else "",
                                  "SWIFTCACHE_BROKER": self.broker.grpc})
        assert not check or run.returncode == 0, run.stderr
        return run

    def stop(self):
        codes = [(p.child.args[0], p.stop()) for p in reversed(self.all) if p.child.poll() is None]
        assert all(code == 0 for _, code in codes), codes

    def cleanup(self):
        """Leaves nothing behind, however the test ended."""
        for process in self.all:
            if process.child.poll() is None:
                process.child.send_signal(signal.SIGCONT)
                process.kill()
        self.sockets.cleanup()


@pytest.fixture
def cluster(binaries, tmp_path):
    made = Cluster(binaries, tmp_path)
    try:
        yield made
        made.stop()
    finally:
        made.cleanup()


@pytest.fixture
def tiny(cluster):
    """A cluster that serves the model `tiny`."""
    cluster.engine = cluster.start()
    return cluster


def python_stubs(out):
    """Python stubs made from the proto files alone, into the folder `out`."""
    protos = sorted(str(p.relative_to(ROOT / "proto")) for p in (ROOT / "proto" / "swiftcache").rglob("*.proto"))
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_out={out}",
                    f"--grpc_python_out={out}", *protos], check=True)
    sys.path.insert(0, str(out))
    from swiftcache.v1 import generate_pb2, generate_pb2_grpc
    return generate_pb2, generate_pb2_grpc


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
    return python_stubs(tmp_path_factory.mktemp("stubs"))
