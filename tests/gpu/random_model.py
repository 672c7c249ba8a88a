# SPDX-License-Identifier: Apache-2.0
"""Models of a given shape with random weights, as a folder of Hugging Face's kind; of Python alone.

  write(folder, QWEN3_8B)"""
import json
import pathlib
import random
import shutil
import struct

TINY = pathlib.Path(__file__).resolve().parents[2] / "tests/data/tiny/tiny-qwen3"  # its tokenizer; its vocabulary is 704
LIKE = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
QWEN3_8B = {**LIKE, "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
            "tie_word_embeddings": False}
WORKER = {**LIKE, "num_hidden_layers": 28, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
          "tie_word_embeddings": True}  # Qwen3-0.6B
PIECE = 1 << 20


def kv_bytes(shape):
    """Of a token, in bf16."""
    return shape["num_hidden_layers"] * 2 * shape["num_key_value_heads"] * shape["head_dim"] * 2


def tensors(shape):
    hidden, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", [shape["vocab_size"], hidden]
    for layer in range(shape["num_hidden_layers"]):
        for name, size in (("input_layernorm", [hidden]), ("self_attn.q_proj", [queries, hidden]), ("self_attn.k_proj", [keys, hidden]),
                           ("self_attn.v_proj", [keys, hidden]), ("self_attn.q_norm", [head]), ("self_attn.k_norm", [head]),
                           ("self_attn.o_proj", [hidden, queries]), ("post_attention_layernorm", [hidden]),
                           ("mlp.gate_proj", [inner, hidden]), ("mlp.up_proj", [inner, hidden]), ("mlp.down_proj", [hidden, inner])):
            yield f"model.layers.{layer}.{name}.weight", size
    yield "model.norm.weight", [hidden]
    if not shape["tie_word_embeddings"]:
        yield "lm_head.weight", [shape["vocab_size"], hidden]


def write(folder, shape):
    """Norms are ones; weights a piece of random bf16 of 2^-7 to 2^-6 and either sign, over and over: no two models need more
    to be as slow as each other."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TINY / name, folder)
    config = json.loads((TINY / "config.json").read_text())
    config.update(shape, max_position_embeddings=1 << 17, layer_types=["full_attention"] * shape["num_hidden_layers"])
    (folder / "config.json").write_text(json.dumps(config))

    header, end = {}, 0
    for name, size in tensors(shape):
        elements = size[0] * (size[1] if len(size) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [end, end + 2 * elements]}
        end += 2 * elements
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    bits = int.from_bytes(random.Random(1).randbytes(PIECE), "little")
    every = int.from_bytes(b"\x7f\x80" * (PIECE // 2), "little"), int.from_bytes(b"\x00\x3c" * (PIECE // 2), "little")
    piece = (bits & every[0] | every[1]).to_bytes(PIECE, "little")
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, entry in header.items():
            left = entry["data_offsets"][1] - entry["data_offsets"][0]
            if len(entry["shape"]) == 1:
                file.write(b"\x80\x3f" * (left // 2))
                continue
            while left > 0:
                left -= file.write(piece[:left])
