#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up what tests/run.sh left in a folder and prints `N passed, N failed` as the last line.

Counted: every GoogleTest case (JSON), every pytest case (JUnit), every stage that is not a test runner itself, and every
stage that failed without a failing case, or one of whose binaries did (a crash, a time-out). Listed, too: what was skipped.
"""
import json
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

RUNNERS = ("unit-", "end-to-end")  # stages whose cases are counted instead


def gtest_cases(path):
    """Yield (name, 'pass' | 'fail' | 'skip', message) of one GoogleTest JSON file."""
    report = json.loads(path.read_text())
    for suite in report["testsuites"]:
        for case in suite["testsuite"]:
            name = f"{suite['name']}.{case['name']}"
            if "failures" in case:
                yield name, "fail", case["failures"][0]["failure"].splitlines()[0]
            elif case.get("result") == "SKIPPED":
                skipped = case.get("skipped") or [{"message": ""}]
                yield name, "skip", " ".join(skipped[0]["message"].split("\n")[1:]).strip()
            else:
                yield name, "pass", ""


def junit_cases(path):
    for case in xml.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        failure = case.find("failure") if case.find("failure") is not None else case.find("error")
        if failure is not None or case.get("status") == "fail":
            message = failure.get("message") if failure is not None else ""
            yield name, "fail", (message or "").split("\n")[0]
        elif case.find("skipped") is not None:
            yield name, "skip", case.find("skipped").get("message") or ""
        else:
            yield name, "pass", ""


def runner_cases(folder, stage):
    """The cases that a stage's test runner reported."""
    if stage.startswith("unit-"):
        preset = stage.removeprefix("unit-")
        for path in sorted((folder / f"{preset}-gtest").glob("*.json")):
            yield from gtest_cases(path)
    elif stage.startswith("end-to-end"):
        junit = folder / (stage.replace("end-to-end", "e2e") + ".junit.xml")
        yield from junit_cases(junit) if junit.exists() else ()


def text_of(log):
    return log.read_text(errors="replace") if log.exists() else ""


def fallen(folder, stage):
    """What CTest says of binaries that ended without a failing case: `NAME (SEGFAULT) in CASE, NAME (Timeout)`, or nothing."""
    def told(name):
        report = folder / f"{stage.removeprefix('unit-')}-gtest" / f"{name}.json"
        return report.exists() and any(result == "fail" for _, result, _ in gtest_cases(report))

    def begun_last(name):
        output = re.search(rf"Test\s+#\d+: {re.escape(name)} \.*\*\*\*.*?(?=^ *\d+/\d+ Test|\Z)", log, re.DOTALL | re.MULTILINE)
        begun = re.findall(r"^\[ RUN      \] (\S+)", output[0], re.MULTILINE) if output else []
        return f" in {begun[-1]}" if begun else ""

    log = text_of(folder / f"{stage}.log")
    listed = re.findall(r"^\s+\d+ - (\S+) (\(.+\))", log, re.MULTILINE)
    return ", ".join(f"{name} {why}{begun_last(name)}" for name, why in listed if not told(name))


def cases(folder):
    for path in sorted(folder.glob("*.stage")):
        stage, verdict, log, found = path.stem, path.read_text().strip(), path.with_suffix(".log"), []
        for name, result, message in runner_cases(folder, stage):
            found.append(result)
            yield f"{stage}: {name}", result, message
        if verdict == "skip":
            yield f"stage {stage}", "skip", "".join(text_of(log).splitlines()[-1:])
        elif verdict == "fail" and ("fail" not in found or fallen(folder, stage)):  # a crash, a time-out, no binary
            yield f"stage {stage}", "fail", f"{fallen(folder, stage)}; see {log}".removeprefix("; ")
        elif "pass" not in found:
            yield f"stage {stage}", "fail" if stage.startswith(RUNNERS) else verdict, "no case ran"


def main():
    counts = {"pass": 0, "fail": 0, "skip": 0}
    skipped = {}
    for name, result, message in cases(pathlib.Path(sys.argv[1])):
        counts[result] += 1
        if result == "fail":
            print(f"FAILED  {name}: {message}")
        elif result == "skip":
            skipped.setdefault(str(message)[:150], []).append(name)
    for message, names in skipped.items():
        print(f"skipped {len(names)} ({names[0]}{', ...' if len(names) > 1 else ''}): {message}")
    print(f"{counts['pass']} passed, {counts['fail']} failed")
    return 1 if counts["fail"] or not counts["pass"] else 0


if __name__ == "__main__":
    sys.exit(main())
