#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A chat of two turns by the openai package. The second turn finds the first in the KV cache.

  python3 -m venv /tmp/clients && /tmp/clients/bin/pip install openai
  /tmp/clients/bin/python deploy/examples/chat_openai.py [URL] [MODEL]
"""
import sys

import openai

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
model = sys.argv[2] if len(sys.argv) > 2 else "chat"

client = openai.OpenAI(base_url=url + "/v1", api_key="none")  # the package wants one, the gateway does not
messages = []
for text in ("Name a colour.", "And another one."):
    messages.append({"role": "user", "content": text})
    answer, usage = "", None
    try:
        for chunk in client.chat.completions.create(model=model, messages=messages, max_tokens=40, temperature=0, stream=True,
                                                    stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            if chunk.choices:
                answer += chunk.choices[0].delta.content or ""
    except openai.OpenAIError as error:
        sys.exit(f"{url}: {error}")  # the gateway says what it wanted
    messages.append({"role": "assistant", "content": answer})
    print(f"you> {text}\n{model}> {answer}")
    print(f"[{usage.prompt_tokens} prompt tokens, {usage.prompt_tokens_details.cached_tokens} of them from the cache]")
