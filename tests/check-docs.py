#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every document says what is there: links and their headings, paths in `backticks` and the symbols behind them, flags
and tests by name, in commands the programs, their flags, presets and targets, in tables of messages what programs say.
And each RPC says what its callers must know. Prints each line that does not hold; exit code 1 where there is one.

  tests/check-docs.py [--bin build/release/bin]     flags are looked up in the programs' own --help
"""
import argparse
import functools
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOPS = ("proto/", "common/", "engine/", "broker/", "gateway/", "services/", "deploy/", "tests/", ".github/", ".ci/")
PROGRAM = re.compile(r"swiftcache-(?:broker|engine|gateway)$|swiftcachectl$")


def tracked(*patterns):
    return subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


FILES = set(tracked())
NAMES = {pathlib.PurePath(file).name for file in FILES}
FOLDERS = {str(parent) for file in FILES for parent in pathlib.PurePath(file).parents} - {"."}


def slug(heading):
    """As GitHub makes anchors of headings."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-")


@functools.cache
def anchors(file):
    return {slug(m[1]) for m in re.finditer(r"^#+ (.+)$", (ROOT / file).read_text(), re.M)}


@functools.cache
def flags(program, bin_dir):
    path = bin_dir / program
    if not path.exists():
        return None
    return set(re.findall(r"--[a-z][a-z_0-9-]*", subprocess.run([path, "--help"], capture_output=True, text=True).stdout))


def exists(path):
    path = path.rstrip("/")
    if "NAME" in path:  # to be filled in
        return True
    if path in FILES or path in FOLDERS:
        return True
    if "{" in path:  # a/{b,c}.h
        head, names, tail = re.match(r"(.*)\{(.*)\}(.*)", path).groups()
        return all(exists(head + name + tail) for name in names.split(","))
    return "*" in path and any(pathlib.PurePath(file).match(path) for file in FILES)


def link_errors(file, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = os.path.normpath(pathlib.PurePath(file).parent / path) if path else file
        if not exists(found):
            yield f"links to {target}, which is not there"
        elif anchor and anchor not in anchors(found):
            yield f"links to {target}: that file has no such heading"


def path_errors(file, text):
    for quoted in re.findall(r"`([^`\n]+)`", text):
        match = re.match(r"([\w./*{},-]+)(?:: ?(.+)| .*)?$", quoted)
        if match and re.fullmatch(r"\w+\.(?:h|cc|cu|cuh|py|sh)", match[1]) and match[1] not in NAMES:
            yield f"names {match[1]}, which is not there"
        if not match or not match[1].startswith(TOPS):
            continue
        here = os.path.normpath(pathlib.PurePath(file).parent / match[1])
        if not exists(match[1]) and not exists(here):
            yield f"names {match[1]}, which is not there"
        elif match[2] and match[1] in FILES:
            for symbol in re.findall(r"[A-Za-z_]\w+", match[2]):
                if not re.search(rf"\b{symbol}\b", (ROOT / match[1]).read_text()):
                    yield f"names {symbol} of {match[1]}, which is not in that file"


@functools.cache
def not_documents():
    files = tracked("*.cc", "*.h", "*.cu", "*.py", "*.sh", "*.cmake", "*CMakeLists.txt", "*CMakePresets.json", "*.yml", "*.yaml")
    return "\n".join((ROOT / file).read_text(errors="replace") for file in files)


@functools.cache
def known_words():
    return set(re.findall(r"\w+", not_documents()))


@functools.cache
def known_flags():
    """What is given or declared: behind dashes, or a literal of its own as in services."""
    return set(re.findall(r'(?:--|")(\w+)(?![\w-])', not_documents()))


@functools.cache
def tests():
    """Suite.Name of each test in C++."""
    text = "\n".join((ROOT / file).read_text() for file in tracked("tests/*.cc"))
    return {f"{suite}.{name}" for suite, name in re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", text)}


def name_errors(text):
    """Names that end in "..." or "*" are the beginnings of names."""
    for quoted in re.findall(r"`([^`\n]+)`", text):
        for flag in re.findall(r"(?:^|\s)--(\w+)(?![\w-])", quoted):
            if flag not in known_flags():
                yield f"names --{flag}, which nothing knows"
        for test in re.findall(r"\b\w+Test\.[A-Z]\w+", quoted):
            if test not in tests():
                yield f"names the test {test}, which is not there"
        for name in re.findall(r"\btest_\w+\b(?!\.\.\.|\*)", quoted):
            if name not in known_words():
                yield f"names {name}, which is not there"
        for option, value in re.findall(r"--(preset|target) (\w+)", quoted):
            if value not in known_words():
                yield f"names the {option} {value}, which is not there"


def commands(text):
    """The lines of indented and fenced blocks that follow, joined where they end with a backslash."""
    fenced = re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", text, re.M | re.S)
    indented = "\n".join(line[4:] for line in re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).split("\n") if line.startswith("    "))
    for block in [*fenced, indented]:
        for line in re.sub(r"\\\n", " ", block).split("\n"):
            yield re.sub(r"(^|\s)#.*", "", line).strip()


def command_errors(text, bin_dir):
    targets = " ".join((ROOT / file).read_text() for file in tracked("*CMakeLists.txt"))
    for command in commands(text):
        for part in re.split(r"&&|\||;|&(?!\d)|\$\(", command):
            words = [word for word in part.split() if not re.match(r"[A-Z_]+=", word)]
            if not words:
                continue
            name = pathlib.PurePath(words[0].strip("()\"")).name
            path = words[0].strip("()\"")
            if path.startswith(TOPS) and not exists(path):
                yield f"runs {path}, which is not there"
            if path.startswith("build/") and not re.search(rf"\b{re.escape(name)}\b", targets):
                yield f"runs {path}, which nothing builds"
            for option, value in re.findall(r"--(preset|target) ([\w-]+)", part):
                if "NAME" not in value and not set(value.split("-")) <= known_words():
                    yield f"gives --{option} {value}, which is not there"
            if PROGRAM.match(name) and (known := flags(name, bin_dir)) is not None:
                for flag in re.findall(r"(--[a-z][a-z_0-9-]*)", part):
                    if flag not in known and name != "swiftcachectl":  # whose flags are its commands'
                        yield f"gives {name} {flag}, which it does not know"


@functools.cache
def sources():
    """All that programs may say, literals that the lines' length has parted put together."""
    text = " ".join((ROOT / file).read_text() for file in tracked("*.cc") if not file.startswith("tests/"))
    return re.sub(r'"\s*\n\s*"', "", text).replace('\\"', '"')


def message_errors(text):
    """In tables of messages: the parts between `...` are what a program says."""
    for table in re.findall(r"^\| message \|.*\n((?:\|.*\n)+)", text, re.M):
        for quoted in re.findall(r"^\| `([^`]+)`", table, re.M):
            for part in quoted.split("..."):
                if part.strip() not in sources():
                    yield f"quotes the message {quoted}, of which no program says {part!r}"


def rpc_errors(text):
    """In the comment right above each RPC."""
    for comment, name, rest in re.findall(r"((?:^ *//.*\n)*)^ *rpc (\w+)(.*)", text, re.M):
        for label in ("Guarantee", "Idempotence", "Errors", "Deadline"):
            if f"{label}:" not in comment:
                yield f"the comment of {name} has no \"{label}:\""
        if "returns (stream" in rest and not re.search(r"\bcloses?\b", comment):
            yield f"the comment of {name} does not say who closes its stream"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    args = parser.parse_args()
    code = 0
    for file in tracked("*.md"):
        text = (ROOT / file).read_text()
        for error in [*link_errors(file, text), *path_errors(file, text), *name_errors(text), *command_errors(text, args.bin),
                      *message_errors(text)]:
            print(f"{file}: {error}")
            code = 1
    for file in tracked("proto/swiftcache/*.proto"):
        for error in rpc_errors((ROOT / file).read_text()):
            print(f"{file}: {error}")
            code = 1
    return code


sys.exit(main())
