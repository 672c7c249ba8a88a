// SPDX-License-Identifier: Apache-2.0
// Writes small GGUF files, rightly or wrongly.
//
//   GgufBuilder gguf = TinyGguf("llama");
//   gguf.Set("llama.block_count", uint32_t{2});
//   const std::string bytes = gguf.Bytes();
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace swiftcache::engine::loader {

class GgufBuilder {
 public:
  template <typename T>
  static std::string Raw(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string Text(const std::string& text) { return Raw<uint64_t>(text.size()) + text; }

  void Set(const std::string& key, uint32_t value) { pairs_[key] = {4, Raw(value)}; }
  void Set(const std::string& key, float value) { pairs_[key] = {6, Raw(value)}; }
  void Set(const std::string& key, bool value) { pairs_[key] = {7, Raw<uint8_t>(value)}; }
  void Set(const std::string& key, const std::string& value) { pairs_[key] = {8, Text(value)}; }
  void Set(const std::string& key, const char* value) { Set(key, std::string(value)); }
  void SetStrings(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes = Raw<uint32_t>(8) + Raw<uint64_t>(values.size());
    for (const std::string& value : values) bytes += Text(value);
    pairs_[key] = {9, bytes};
  }
  template <typename T>
  void SetArray(const std::string& key, uint32_t type, const std::vector<T>& values) {
    std::string bytes = Raw(type) + Raw<uint64_t>(values.size());
    for (const T value : values) bytes += Raw(value);
    pairs_[key] = {9, bytes};
  }
  void SetRaw(const std::string& key, uint32_t type, std::string bytes) { pairs_[key] = {type, std::move(bytes)}; }
  void Drop(const std::string& key) { pairs_.erase(key); }

  void AddTensor(const std::string& name, std::vector<uint64_t> dims, uint32_t type, std::string data) {
    tensors_[name] = {std::move(dims), type, std::move(data)};
  }
  void AddF32(const std::string& name, std::vector<uint64_t> dims, const std::vector<float>& values) {
    std::string data;
    for (const float value : values) data += Raw(value);
    AddTensor(name, std::move(dims), 0, data);
  }
  void DropTensor(const std::string& name) { tensors_.erase(name); }

  std::string Bytes(uint32_t version = 3, size_t alignment = 32) const {
    std::string head = "GGUF" + Raw(version) + Raw<uint64_t>(tensors_.size()) + Raw<uint64_t>(pairs_.size());
    for (const auto& [key, value] : pairs_) head += Text(key) + Raw(value.first) + value.second;
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      head += Text(name) + Raw(static_cast<uint32_t>(tensor.dims.size()));
      for (const uint64_t dim : tensor.dims) head += Raw(dim);
      head += Raw(tensor.type) + Raw<uint64_t>(data.size());
      data += tensor.data;
      data.resize((data.size() + alignment - 1) / alignment * alignment);
    }
    head.resize((head.size() + alignment - 1) / alignment * alignment);
    return head + data;
  }

 private:
  struct Tensor {
    std::vector<uint64_t> dims;
    uint32_t type = 0;
    std::string data;
  };
  std::map<std::string, std::pair<uint32_t, std::string>> pairs_;
  std::map<std::string, Tensor> tensors_;
};

/// One layer, hidden 8, 2 heads of 4, 1 key-value head, 6 tokens; every weight of row r is r.
inline GgufBuilder TinyGguf(const std::string& arch) {
  GgufBuilder b;
  b.Set("general.architecture", arch);
  for (const auto& [key, value] : std::map<std::string, uint32_t>{{"block_count", 1},
                                                                  {"context_length", 64},
                                                                  {"embedding_length", 8},
                                                                  {"feed_forward_length", 8},
                                                                  {"attention.head_count", 2},
                                                                  {"attention.head_count_kv", 1}}) {
    b.Set(arch + "." + key, value);
  }
  b.Set(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  b.Set("tokenizer.ggml.model", "gpt2");
  b.Set("tokenizer.ggml.pre", "gpt-2");
  b.SetStrings("tokenizer.ggml.tokens", {"</s>", "a", "b", "c", "ab", "abc"});
  b.SetArray<int32_t>("tokenizer.ggml.token_type", 5, {3, 1, 1, 1, 1, 4});
  b.SetStrings("tokenizer.ggml.merges", {"a b", "ab c"});
  b.Set("tokenizer.ggml.eos_token_id", uint32_t{0});
  const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t cols) {
    std::vector<float> values;
    for (uint64_t r = 0; r < rows; ++r) values.insert(values.end(), cols, static_cast<float>(r));
    b.AddF32(name, {cols, rows}, values);
  };
  const auto vector = [&](const std::string& name, uint64_t cols) {
    b.AddF32(name, {cols}, std::vector<float>(cols, 1));
  };
  matrix("token_embd.weight", 6, 8);
  vector("output_norm.weight", 8);
  vector("blk.0.attn_norm.weight", 8);
  matrix("blk.0.attn_q.weight", 8, 8);
  matrix("blk.0.attn_k.weight", 4, 8);
  matrix("blk.0.attn_v.weight", 4, 8);
  matrix("blk.0.attn_output.weight", 8, 8);
  vector("blk.0.ffn_norm.weight", 8);
  matrix("blk.0.ffn_gate.weight", 8, 8);
  matrix("blk.0.ffn_up.weight", 8, 8);
  matrix("blk.0.ffn_down.weight", 8, 8);
  if (arch == "qwen2") vector("blk.0.attn_q.bias", 8), vector("blk.0.attn_k.bias", 4), vector("blk.0.attn_v.bias", 4);
  if (arch == "qwen3") vector("blk.0.attn_q_norm.weight", 4), vector("blk.0.attn_k_norm.weight", 4);
  return b;
}

}  // namespace swiftcache::engine::loader
