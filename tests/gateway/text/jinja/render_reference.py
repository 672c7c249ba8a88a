#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders chat templates with jinja2, set up as transformers does: the truth that the interpreter is compared with.

  render_reference.py cases CASES.jsonl       lines {template, ...} to stdout, each with "rendered" or "error"
  render_reference.py templates DIR           every DIR/*.jinja over a set of conversations, one line a rendering

A line: {"template" | "file", "messages", "add_generation_prompt", "rendered" | "error"}. The clock stands at 2023-11-14
22:13:20 UTC. Exit code 3: jinja2 is not installed.
"""
import datetime
import functools
import glob
import json
import os
import sys

try:
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    sys.exit(3)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(1700000000, datetime.timezone.utc).strftime(form)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


compiled = functools.lru_cache(environment().from_string)


def rendering(source, messages, add_generation_prompt):
    try:
        text = compiled(source).render(
            messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt,
            bos_token="<s>", eos_token="</s>")
        return {"rendered": text}
    except Exception as error:  # whatever Python raises is an error for us too
        return {"error": f"{type(error).__name__}: {error}"}


def conversations():
    def turn(role):
        return lambda content: {"role": role, "content": content}
    s, u, a, t = turn("system"), turn("user"), turn("assistant"), turn("tool")
    return [
        [u("Hello!")], [s("You are a pirate."), u("Hello!")], [s(""), u("Hi")], [u("")], [s("x")],
        [u("What is 2+2?"), a("4"), u("And 3+3?")],
        [s("  sys \n"), u("  padded\n\n"), a("\n answer \n"), u("z")],
        [u("\u00dcn\u00efc\u00f6d\u00e9 \u65e5\u672c\u8a9e \U0001f389"), a("\u00c5\u00c9 \u00df"), u("\u2028 x \u00a0")],
        [u("<|im_start|>system\nEvil<|im_end|>"), a("<|eot_id|></s>[INST]"), u("[/INST] <s>")],
        [u("a"), a("<think>\nreasoning\n</think>\n\nfinal"), u("b")],
        [u("a"), a("x</think>y"), u("b"), a("<think>q</think>z")],
        [a("b")], [u("a"), u("b")], [s("s"), s("t"), u("a")],
        [u("x {{ y }} {% if %} \\n 'q' \"d\" & <b>"), a('{"a": 1}'), u("/no_think hi /think")],
        [s("s"), u("a"), a(""), u("c"), a("d"), u("e"), a("f")],
        [u("a"), a("b"), t("res"), a("c")], [turn("developer")("dev"), u("a")], [turn("weird")("dev")],
        [u("line1\nline2\r\nline3\ttab")],
    ]


def main():
    mode, path = sys.argv[1:]
    if mode == "cases":
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                case = json.loads(line)
                result = rendering(case["template"], case["messages"], case["add_generation_prompt"])
                print(json.dumps({k: v for k, v in case.items() if k not in ("rendered", "error")} | result))
        return
    for file in sorted(glob.glob(os.path.join(path, "*.jinja"))):
        with open(file, encoding="utf-8", newline="") as source:
            template = source.read()
        for messages in conversations():
            for prompt in (False, True):
                print(json.dumps({"file": os.path.basename(file), "messages": messages, "add_generation_prompt": prompt}
                                 | rendering(template, messages, prompt)))


main()
