# SPDX-License-Identifier: Apache-2.0
"""deploy/observability: Prometheus with its rules and Grafana's dashboards, against a cluster at work. Nothing that anybody is
shown may be empty there, the alert of a dead engine comes, and the table of metrics in services/README.md is what is there
(METRICS_TABLE=write writes it)."""
import concurrent.futures
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from conftest import ROOT, wait_until
from leasing import ARENA, DONOR, WAIT, Leasing

OBSERVABILITY = ROOT / "deploy" / "observability"
TESTS = ROOT / "tests" / "observability"
README = ROOT / "services" / "README.md"
TABLE = "<!-- metrics: METRICS_TABLE=write, tests/e2e/observability_test.py -->\n", "<!-- end of metrics -->\n"
METRIC = re.compile(r"\b(?:\w+:)?(?:swiftcache_|vllm:|process_|up\b)[\w:]*(?:\{[^}]*\})?")
RATE_INTERVAL = "$__rate_interval", "1m"  # what Grafana fills in

LENGTHS = [61, 125, 189]  # of prompts: behind what the cache has, whole blocks, there is always something to prefill


@pytest.fixture(scope="module")
def prometheus_bin():
    """The folder of Debian's prometheus."""
    run = subprocess.run([TESTS / "prometheus.sh"], capture_output=True, text=True)
    if run.returncode != 0:
        pytest.skip(run.stderr.strip())
    return run.stdout.strip()


class Prometheus:
    """As deploy/observability/prometheus-host.yml has it, with other targets and ten times as fast."""

    def __init__(self, program, folder, targets):
        self.log = folder / "prometheus.log"
        config = folder / "observability"
        shutil.copytree(OBSERVABILITY, config)
        (config / "targets" / "host.yml").write_text(json.dumps(
            [{"labels": {"kind": kind}, "targets": addresses} for kind, addresses in targets.items()]))
        for file in config.glob("*.yml"):
            text = re.sub(r"(scrape_interval|evaluation_interval): 5s", r"\1: 500ms", file.read_text())
            file.write_text(re.sub(r"for: \d+[sm]", "for: 1s", text))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = "127.0.0.1:%d" % free.getsockname()[1]
        with open(self.log, "w") as log:
            self.child = subprocess.Popen(
                [program, f"--config.file={config / 'prometheus-host.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
                 f"--web.listen-address={self.address}"], stderr=log)

    def get(self, path, **query):
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as reply:
            return json.load(reply)["data"]

    def answers(self):
        assert self.child.poll() is None, self.log.read_text()
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return self.get("status/buildinfo")

    def values(self, expression):
        """Those of an instant query that are numbers."""
        result = self.get("query", query=expression)["result"]
        return [one["value"][1] for one in result if one["value"][1] != "NaN"]

    def rules(self):
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def firing(self):
        """{(alert, instance)}"""
        return {(alert["labels"]["alertname"], alert["labels"].get("instance")) for alert in self.get("alerts")["alerts"]
                if alert["state"] == "firing"}

    def stop(self):
        self.child.terminate()
        self.child.wait(30)


class Users:
    """Clients over HTTP, each of whom talks to one model about the same things again and again until `stop`."""

    def __init__(self, address, *models, topics=12):
        self.address, self.topics, self.ending, self.errors, self.threads = address, topics, threading.Event(), [], []
        for seed, model in enumerate(models):
            self.threads.append(threading.Thread(target=self._talk, args=(model, random.Random(seed))))
            self.threads[-1].start()

    def ask(self, model, prompt, max_tokens=4, path="completions", **more):
        """The status of the answer."""
        body = {"model": model, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}
        body["prompt" if path == "completions" else "messages"] = prompt
        request = urllib.request.Request(f"http://{self.address}/v1/{path}", data=json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                reply.read()
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def _talk(self, model, rng):
        topics = [[rng.randrange(20, 700) for _ in range(189)] for _ in range(self.topics)]
        while not self.ending.is_set():
            tokens = rng.choice(topics)[:rng.choice(LENGTHS)]
            status = self.ask(model, rng.choice([tokens] * 9 + ["the cat sat on the mat"]))
            if status != 200:
                self.errors.append((model, status))

    def stop(self):
        self.ending.set()
        for thread in self.threads:
            thread.join(90)
        assert self.errors == [], self.errors[:3]


def lease_traffic(cluster, phase):
    return cluster.count("donor", "swiftcache_lease_traffic_step_seconds_total", phase=phase)


def be_refused(cluster, users):
    """In each way that there is."""
    assert users.ask("absent", "one") == 404
    assert users.ask("chat", "one", top_p=7) == 400
    assert users.ask("chat", [20] * 5000) == 400
    assert cluster.gateway.get("/nowhere")[0] == 404
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert 429 in set(pool.map(lambda _: users.ask("narrow", "one", 1500), range(8)))


def want_memory_back(cluster, users):
    """The donor is asked for more than it has kept for itself."""
    def waited():
        prompts = [[random.randrange(20, 700) for _ in range(1500)] for _ in range(4)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda prompt: users.ask("donor", prompt), prompts)) == {200}
        return cluster.count("donor", "swiftcache_reclaim_wait_seconds_count") > 0
    wait_until(waited, WAIT, "the donor wants its memory back")


def have_a_lease_fenced(cluster):
    """It is taken back while its borrower stands still."""
    def of_chat():  # which it has opened: else the donor ends it at once
        opened = set(re.findall(r"lease (\d+) of \d+ blocks from donor is in use", cluster.engines["chat"].text()))
        return [lease[0] for lease in cluster.leases() if lease[1:] == ("granted", "donor", "chat") and lease[0] in opened]
    borrower = cluster.engines["chat"].child
    lease = wait_until(of_chat, WAIT, "chat leases")[0]
    borrower.send_signal(signal.SIGSTOP)
    try:
        cluster.ctl("lease", "revoke", lease)
        wait_until(lambda: cluster.count("donor", "swiftcache_lease_fenced_total") > 0, WAIT, "a lease is fenced")
    finally:
        borrower.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def at_work(cluster, prometheus_bin):
    """A cluster in which everything happens that metrics tell of."""
    cluster.begin("--heartbeat_misses=8")  # an engine may stand still for two seconds
    cluster.engine("donor", DONOR)
    cluster.engine("chat", ARENA)
    cluster.engine("streaming", ARENA, "--stream=lsc", "--link_gbps=100")  # whose decode bound is known
    cluster.engine("narrow", "--max_num_seqs=1", "--max_waiting_requests=1", "--transport=none")
    cluster.ready("donor", "chat", "streaming", "narrow")
    with contextlib.ExitStack() as undo:
        prometheus = Prometheus(f"{prometheus_bin}/prometheus", cluster.folder, {
            "broker": [cluster.broker.http], "gateway": [cluster.gateway.http],
            "engine": [engine.http for engine in cluster.engines.values()]})
        undo.callback(prometheus.stop)
        # A rate tells only of what comes after the first scrape.
        wait_until(lambda: prometheus.answers() and len(prometheus.values("up == 1")) == 2 + len(cluster.engines), WAIT,
                   "Prometheus has scraped all")
        donors_users = Users(cluster.gateway.http, "donor", "donor", topics=3)
        undo.callback(donors_users.stop)
        # Its steps without lease traffic first: those beside it are compared with them.
        wait_until(lambda: cluster.count("donor", "swiftcache_request_prompt_tokens_count") > 1500, WAIT, "quiet steps")
        users = Users(cluster.gateway.http, "chat", "chat", "streaming", "streaming")
        undo.callback(users.stop)
        wait_until(lambda: min(cluster.from_donors(name) for name in ("chat", "streaming")) > 500, WAIT, "hits in leases")
        wait_until(lambda: min(lease_traffic(cluster, phase) for phase in ("prefill", "decode")) > 0, WAIT,
                   "steps under lease traffic")
        assert users.ask("chat", [{"role": "user", "content": "hello"}], path="chat/completions") == 200
        be_refused(cluster, users)
        want_memory_back(cluster, users)
        have_a_lease_fenced(cluster)
        yield prometheus


def dashboards():
    """{file, title of the panel and expression}, with everything chosen that there is."""
    for file in sorted((OBSERVABILITY / "grafana" / "dashboards").glob("*.json")):
        board = json.loads(file.read_text())
        filled_in = [RATE_INTERVAL]
        for variable in board["templating"]["list"]:
            if variable["type"] == "datasource":
                continue
            filled_in.append(("$" + variable["name"], variable["allValue"]))
            metric = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
            yield file.name, variable["name"], f'{metric[1]}{{{metric[2]}!=""}}'
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"]
                for name, value in filled_in:
                    expression = expression.replace(name, value)
                yield file.name, panel["title"], expression


def described(text):
    """(name, help, type, labels) of each metric in the text of /metrics."""
    for lines in text.split("# HELP ")[1:]:
        head, kind, *samples = lines.strip().split("\n")
        name, meaning = head.split(" ", 1)
        yield name, meaning.rstrip("."), kind.split()[-1], set(re.findall(r'[{,](\w+)="', "".join(samples))) - {"le"}


def metrics_table(cluster):
    found = {}  # (name, meaning): type, kinds of servers, labels; without those that all metrics of an engine have
    for kind, servers in {"broker": [cluster.broker], "engine": cluster.engines.values(), "gateway": [cluster.gateway]}.items():
        common = {"engine", "model_name"} if kind == "engine" else set()
        for name, meaning, what, labels in (one for server in servers for one in described(server.get("/metrics")[1])):
            _, kinds, known = found.setdefault((name, meaning), (what, set(), set()))
            kinds.add(kind)
            known |= labels - common
    rows = []
    for (name, meaning), (what, kinds, labels) in found.items():
        of = "every server" if len(kinds) == 3 else ", ".join(sorted(kinds))
        labels = "{%s}" % ",".join(sorted(labels)) if labels else ""
        rows.append((of, f"| `{name}{labels}` | {what} | {of} | {meaning} |"))
    return "\n".join(["| metric | kind | of | meaning |", "|---|---|---|---|", *(row for _, row in sorted(rows))]) + "\n"


def check_metrics_table(cluster):
    before, rest = README.read_text().split(TABLE[0])
    written, after = rest.split(TABLE[1])
    ratio = "swiftcache_interference_ratio"  # there is none before a hundred comparisons
    wait_until(lambda: any(key.startswith(ratio) for key in cluster.engines["donor"].metrics()), WAIT, ratio)
    if os.environ.get("METRICS_TABLE") == "write":
        README.write_text(before + TABLE[0] + metrics_table(cluster) + TABLE[1] + after)
    else:
        assert metrics_table(cluster) == written, "services/README.md has another table of metrics"


def test_nothing_that_is_asked_of_a_cluster_at_work_is_empty_and_a_dead_engine_is_told_of(binaries, prometheus_bin, tmp_path):
    cluster = Leasing(binaries, tmp_path)
    begin = time.monotonic()
    try:
        with at_work(cluster, prometheus_bin) as prometheus:
            print(f"at work after {time.monotonic() - begin:.1f} s")
            rules = prometheus.rules()
            asked = [("recording.yml", rule["name"], rule["query"]) for rule in rules if rule["type"] == "recording"]
            for rule in rules:  # of an alert what it looks at: all is well here
                if rule["type"] == "alerting":
                    assert rule["labels"]["severity"] in ("page", "ticket")
                    assert rule["annotations"]["summary"] and rule["annotations"]["description"]
                    asked += [("alerts.yml", rule["name"], one) for one in METRIC.findall(rule["query"])]
            asked += dashboards()
            empty = list(asked)

            def none_is_empty():
                empty[:] = [one for one in empty if not prometheus.values(one[2])]
                return not empty
            try:
                wait_until(none_is_empty, 30, "every expression has a value")
            finally:
                print(f"{len(asked)} expressions, {time.monotonic() - begin:.1f} s; empty: {empty}")
            requests = next(expression for _, title, expression in dashboards() if title == "Requests")
            refused = [one["metric"] for one in prometheus.get("query", query=requests)["result"] if "model_name" not in one["metric"]]
            assert {"code": "NOT_FOUND"} in refused, "requests that no model got are not shown"
            check_metrics_table(cluster)
            victim = cluster.engines["narrow"].http
            assert ("SwiftCacheServerDown", victim) not in prometheus.firing()
            cluster.engines["narrow"].kill()
            wait_until(lambda: {("SwiftCacheServerDown", victim), ("SwiftCacheEnginesLost", None)} <= prometheus.firing(), WAIT,
                       f"alerts of the engine at {victim}")
            print(f"alerts after {time.monotonic() - begin:.1f} s")
        cluster.finish()
    finally:
        cluster.cleanup()
