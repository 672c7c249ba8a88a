# SPDX-License-Identifier: Apache-2.0
"""Llama, Qwen2 and Qwen3 in numpy, in double precision: an implementation that shares nothing with the engine.

    model = read_model("SmolLM2-135M-Instruct.Q4_1.gguf")     # or a Hugging Face folder
    logits = forward(model, ids)                              # f64 [len(ids)][vocab], one sequence

Weights are the file's own values: safetensors as stored, GGUF as the package `gguf` dequantises it (to f32, by GGML's
reference). Everything after that is f64, but the frequencies of rope: those are f32, as the models were trained with.
"""
import json
import pathlib
import struct

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

GGUF_NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
              "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
              "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GGUF_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class Model:
    """Hyperparameters and weights, f32 arrays under Hugging Face's names."""

    def __init__(self, config, weights):
        self.__dict__.update(config)
        self.weights = weights

    def get(self, name):
        """f64, or nothing."""
        found = self.weights.get(name)
        return None if found is None else found.astype(np.float64)


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack_from("<Q", raw)[0]
    out = {}
    for name, info in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in info["data_offsets"])
        if info["dtype"] == "BF16":
            values = (np.frombuffer(raw[begin:end], "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw[begin:end], {"F32": "<f4", "F16": "<f2", "I32": "<i4"}[info["dtype"]])
        out[name] = values.reshape(info["shape"])
    return out


def read_folder(folder):
    c = json.loads((folder / "config.json").read_text())
    rope = {"rope_theta": c.get("rope_theta"), **(c.get("rope_scaling") or {}), **(c.get("rope_parameters") or {})}
    assert rope.get("rope_type", "default") in ("default", "llama3"), rope
    config = {"layers": c["num_hidden_layers"], "heads": c["num_attention_heads"], "kv_heads": c["num_key_value_heads"],
              "head_dim": c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"], "eps": c["rms_norm_eps"],
              "rope": rope}
    tensors = read_safetensors(folder / "model.safetensors")
    return Model(config, {name: np.asarray(values, np.float32) for name, values in tensors.items()})


def unpaired(rows, heads):
    """llama's GGUF files store a head's rows as rope's pairs (0, d/2), (1, d/2 + 1), ..."""
    d = rows.shape[0] // heads
    return rows.reshape(heads, d // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def read_gguf(path):
    reader = GGUFReader(path)

    def key(name, default=None):
        field = reader.fields.get("llama." + name)
        return default if field is None else field.contents()

    assert reader.fields["general.architecture"].contents() == "llama", "of GGUF files, only llama's are read here"
    heads = key("attention.head_count")
    config = {"layers": key("block_count"), "heads": heads, "kv_heads": key("attention.head_count_kv", heads),
              "head_dim": key("attention.key_length", key("embedding_length") // heads),
              "eps": key("attention.layer_norm_rms_epsilon"), "rope": {"rope_theta": key("rope.freq_base", 10000.0)}}
    weights = {}
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if tensor.name.startswith("blk."):
            _, layer, part, kind = tensor.name.split(".")
            if part in ("attn_q", "attn_k"):
                values = unpaired(values, heads if part == "attn_q" else config["kv_heads"])
            weights[f"model.layers.{layer}.{GGUF_NAMES[part]}.{kind}"] = values
        else:
            part, kind = tensor.name.split(".")
            weights[f"{GGUF_OUTER[part]}.{kind}"] = values
    return Model(config, weights)


def read_model(path):
    path = pathlib.Path(path)
    return read_folder(path) if path.is_dir() else read_gguf(path)


def rope_frequencies(model):
    d, rope = model.head_dim, model.rope
    f32 = np.float32
    frequencies = f32(1) / (f32(rope["rope_theta"]) ** (np.arange(0, d, 2).astype(f32) / f32(d)))
    if rope.get("rope_type") != "llama3":
        return frequencies
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    turns = rope["original_max_position_embeddings"] * frequencies.astype(np.float64) / (2 * np.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return ((1 - smooth) * frequencies / factor + smooth * frequencies).astype(f32)


def normed(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotated(x, cos, sin):
    """x: [tokens][heads][d]"""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attended(model, layer, x, cos, sin):
    tokens, d = len(x), model.head_dim

    def project(name, heads):
        out = x @ model.get(f"{layer}.{name}_proj.weight").T
        bias = model.get(f"{layer}.{name}_proj.bias")
        return (out if bias is None else out + bias).reshape(tokens, heads, d)

    q, k, v = project("q", model.heads), project("k", model.kv_heads), project("v", model.kv_heads)
    if (norm := model.get(f"{layer}.q_norm.weight")) is not None:
        q, k = normed(q, norm, model.eps), normed(k, model.get(f"{layer}.k_norm.weight"), model.eps)
    q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    unseen = np.triu(np.ones((tokens, tokens), bool), 1)
    out = np.empty((tokens, model.heads, d))
    for head in range(model.heads):
        shared = head // (model.heads // model.kv_heads)
        scores = np.where(unseen, -np.inf, q[:, head] @ k[:, shared].T / np.sqrt(d))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = weights @ v[:, shared] / weights.sum(-1, keepdims=True)
    return out.reshape(tokens, -1) @ model.get(f"{layer}.o_proj.weight").T


def forward(model, ids):
    angles = np.arange(len(ids))[:, None] * rope_frequencies(model).astype(np.float64)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    x = model.weights["model.embed_tokens.weight"][ids].astype(np.float64)
    for index in range(model.layers):
        layer = f"model.layers.{index}"
        h = normed(x, model.get(f"{layer}.input_layernorm.weight"), model.eps)
        x = x + attended(model, f"{layer}.self_attn", h, cos, sin)
        h = normed(x, model.get(f"{layer}.post_attention_layernorm.weight"), model.eps)
        gate, up = (h @ model.get(f"{layer}.mlp.{name}_proj.weight").T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ model.get(f"{layer}.mlp.down_proj.weight").T
    head = "lm_head.weight" if "lm_head.weight" in model.weights else "model.embed_tokens.weight"
    return normed(x, model.get("model.norm.weight"), model.eps) @ model.get(head).T
