# SPDX-License-Identifier: Apache-2.0
"""Conversations over OpenAI's HTTP, with any server that speaks it: what the client saw of each answer."""
import http.client
import json
import random
import time

# Common words, one token each (with the space before) in most byte-pair vocabularies.
WORDS = ("the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you "
         "were all her she there would their we him been has when who will no more if out so up said what its about than into "
         "them can only other time new some could these two may first then do any like my now over such our man me even most").split()


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


class Answer:
    """One streamed greedy answer of exactly `tokens` tokens to a chat's messages, or to a prompt of token ids. Seconds; `at`:
    when each piece of text came. `began` is called at the first; it hangs up at the first after `enough` is set. `every_token`:
    `at` has those, too, that bring no text, from servers that tell the usage so far."""

    def __init__(self, address, model, prompt, tokens, began=lambda: None, enough=None, every_token=False):
        path, field = ("completions", "prompt") if isinstance(prompt[0], int) else ("chat/completions", "messages")
        body = json.dumps({"model": model, field: prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                           "stream": True,
                           "stream_options": {"include_usage": True, "continuous_usage_stats": every_token}})
        connection = http.client.HTTPConnection(address, timeout=600)
        self.begun, self.at, self.text, usage = time.monotonic(), [], "", {}
        connection.request("POST", f"/v1/{path}", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"{address}: {reply.status} {reply.read()[:500]!r}")
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            told, usage = usage.get("completion_tokens", 0), event.get("usage") or usage
            more = every_token and usage.get("completion_tokens", 0) > told
            piece = "".join(choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in event.get("choices") or [])
            if piece or more:
                if not self.at:
                    began()
                self.at.append(time.monotonic())
                self.text += piece
                if enough and enough.is_set():
                    break
        connection.close()
        if not self.at:
            raise RuntimeError(f"{address}: an answer without text")
        self.prompt_tokens = usage.get("prompt_tokens", 0)
        self.ttft, self.seconds = self.at[0] - self.begun, self.at[-1] - self.begun
        self.tpot = (self.at[-1] - self.at[0]) / max(1, usage.get("completion_tokens", tokens) - 1)


class Conversation:
    """Grows by a user's message and the server's own answer each turn; the users' words depend on `key` alone."""

    def __init__(self, key, first_words, turn_words):
        self.rng = random.Random(key)
        self.messages, self.turn = [{"role": "user", "content": words(self.rng, first_words)}], 1
        self.turn_words = turn_words

    def answered(self, text):
        self.messages += [{"role": "assistant", "content": text}, {"role": "user", "content": words(self.rng, self.turn_words)}]
        self.turn += 1
