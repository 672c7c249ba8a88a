// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/gguf_weights.h"

#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "engine/loader/dequantize.h"
#include "engine/loader/errors.h"
#include "engine/loader/weight_plan.h"

namespace swiftcache::engine::loader {
namespace {

// llama's files store the rows of a head as rope's pairs (2i, 2i + 1); Hugging Face keeps i and i + head_dim / 2.
std::vector<int64_t> UnpairRows(int64_t heads, int64_t head_dim) {
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(heads * head_dim));
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t part = 0; part < 2; ++part) {
      for (int64_t i = 0; i < head_dim / 2; ++i) order.push_back(head * head_dim + 2 * i + part);
    }
  }
  return order;
}

absl::Status CheckShape(const std::string& file, const WantedTensor& wanted, const GgufTensor& tensor) {
  const std::vector<int64_t> shape =
      wanted.is_vector ? std::vector<int64_t>{wanted.cols} : std::vector<int64_t>{wanted.cols, wanted.rows};
  if (tensor.dims == shape) return absl::OkStatus();
  return Malformed(file, "tensor ", wanted.gguf_name, " has dimensions [", absl::StrJoin(tensor.dims, ", "),
                   "], want [", absl::StrJoin(shape, ", "), "]");
}

// Ignoring a bias or a norm would give wrong numbers without a word.
absl::Status RefuseUnknown(const GgufFile& gguf, const std::set<std::string>& known) {
  for (const auto& [name, tensor] : gguf.tensors()) {
    if (!absl::StartsWith(name, "blk.") || known.contains(name)) continue;
    if (absl::EndsWith(name, ".attn_rot_embd.weight") || absl::EndsWith(name, ".attn_rot_embd")) continue;  // a table
    return Unsupported(gguf.file(), "tensor ", Quoted(name), " has no place in this architecture and layer count");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::map<std::string, TensorView>> ViewGgufTensors(const GgufFile& gguf, const ModelConfig& config) {
  std::map<std::string, TensorView> views;
  std::set<std::string> known;
  RETURN_IF_ERROR(ForEachWanted(config, [&](const WantedTensor& wanted) -> absl::Status {
    const auto it = gguf.tensors().find(wanted.gguf_name);
    if (it == gguf.tensors().end()) {
      return Malformed(gguf.file(), "tensor ", wanted.gguf_name, " is missing, want [", wanted.rows, "][", wanted.cols,
                       "]");
    }
    const GgufTensor& tensor = it->second;
    RETURN_IF_ERROR(CheckShape(gguf.file(), wanted, tensor));
    const BlockShape block = BlockOf(tensor.type);
    TensorView view{.type = tensor.type,
                    .rows = wanted.rows,
                    .cols = wanted.cols,
                    .row_bytes = wanted.cols / block.elements * block.bytes,
                    .data = tensor.data.data(),
                    .row_order = {}};
    if (wanted.rotary_heads > 0 && config.architecture == Architecture::kLlama) {
      view.row_order = UnpairRows(wanted.rotary_heads, config.head_dim);
    }
    views.emplace(wanted.hf_name, std::move(view));
    known.insert(wanted.gguf_name);
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(RefuseUnknown(gguf, known));
  return views;
}

}  // namespace swiftcache::engine::loader
