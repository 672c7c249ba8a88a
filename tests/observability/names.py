#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What rules, alerts and dashboards ask for is there, and is asked for as what it is: metrics and recorded series by name,
labels in selectors, `by`, `on`, legends and texts, counters under rate and gauges not. Metrics are those of the table in
services/README.md, which tests/e2e/observability_test.py compares with a live cluster's. Prints each line that does not hold;
exit code 1 where there is one."""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
OBSERVABILITY = ROOT / "deploy" / "observability"
EVERYWHERE = {"job", "instance", "alertname", "severity"}
SERIES = re.compile(r"(?<![\w:])((?:\w+:)?(?:swiftcache_|vllm:|process_)[\w:]*|up)\b(?:\{([^}]*)\})?(\[)?")


def metrics():
    """{name: (kind, labels)}"""
    found = {"up": ("gauge", set())}
    table = (ROOT / "services" / "README.md").read_text()
    for name, labels, kind, of in re.findall(r"^\| `([\w:]+)(?:\{([^}]*)\})?` \| (\w+) \| ([^|]+) \|", table, re.M):
        own = set(filter(None, labels.split(","))) | ({"engine", "model_name"} if "engine" in of or "every" in of else set())
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            other = found.get(name + suffix, (kind, set()))[1]  # the broker and engines have some names in common
            found[name + suffix] = kind, own | other | ({"le"} if suffix == "_bucket" else set())
    return found


def rules(file):
    """(name, expression, the rest of the rule) of each."""
    for rule in re.split(r"^      - ", re.sub(r"^ *#.*\n", "", (OBSERVABILITY / file).read_text(), flags=re.M), flags=re.M)[1:]:
        name, expression, rest = re.match(r"\w+: (\S+)\n *expr: (?:>-\n)?(.*?)(?:\n {8}(?=\w+:)(.*))?\Z", rule, re.S).groups()
        yield name, " ".join(expression.split()), rest or ""


def panels():
    """(file and title, expression, legend) of each line of a dashboard."""
    for file in sorted((OBSERVABILITY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield f"{file.name}, {panel['title']}", target["expr"], target["legendFormat"]


def names(lists):
    return {name.strip() for one in lists for name in one.split(",") if name.strip()}


def labels_of(expression, known):
    """Those that its result may have."""
    groups = re.findall(r"\b(?:sum|max|min|avg|count) (?:by \(([^)]*)\) )?\(", expression)
    if groups or re.match(r"(?:sum|max|count)\(", expression):
        return names(groups) - {"le"}
    return set().union(*(known[name][1] for name, _, _ in SERIES.findall(expression) if name in known)) | EVERYWHERE


def errors(expression, shown, known):
    there = set(EVERYWHERE)
    for match in SERIES.finditer(expression):
        name, selector, window = match.groups()
        if name not in known:
            yield f"asks for {name}, which is not there"
            continue
        kind, labels = known[name]
        there |= labels
        for label in re.findall(r"(\w+)\s*[=!]", selector or ""):
            if label not in labels | EVERYWHERE:
                yield f"asks for {name} by {label}, which it does not have"
        function = re.search(r"(\w*)\(?$", expression[:match.start()])[1] if window else ""
        if kind in ("counter", "histogram") and function not in ("rate", "increase"):
            yield f"takes {name} as it stands, a {kind}: it begins again at 0 with each start"
        if kind == "gauge" and function in ("rate", "increase"):
            yield f"takes the {function} of {name}, a gauge"
    for label in sorted(names(re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)) - there):
        yield f"groups by {label}, which nothing there has"
    for label in sorted(set(shown) - labels_of(expression, known)):
        yield f"shows {label}, which its result does not have"


def main():
    known, code = metrics(), 0
    recorded = list(rules("recording.yml"))
    asked = [(name, expression, []) for name, expression, _ in recorded]
    for name, expression, _ in recorded:
        known[name] = "gauge", labels_of(expression, known)
    asked += [(name, expression, re.findall(r"\$labels\.(\w+)", texts)) for name, expression, texts in rules("alerts.yml")]
    asked += [(where, expression, re.findall(r"\{\{(\w+)\}\}", legend)) for where, expression, legend in panels()]
    for where, expression, shown in asked:
        for error in errors(expression, shown, known):
            print(f"{where}: {error}: {expression}")
            code = 1
    print(f"{len(asked)} expressions, {len(known)} names")
    return code


sys.exit(main())
