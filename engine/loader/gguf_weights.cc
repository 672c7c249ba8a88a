// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/gguf_weights.h"

#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "engine/loader/errors.h"
#include "engine/loader/weight_plan.h"

namespace swiftcache::engine::loader {

using backend::WeightSource;

namespace {

absl::Status CheckShape(const std::string& file, const WantedTensor& wanted, const GgufTensor& tensor) {
  const std::vector<int64_t> shape =
      wanted.is_vector ? std::vector<int64_t>{wanted.cols} : std::vector<int64_t>{wanted.cols, wanted.rows};
  if (tensor.dims == shape) return absl::OkStatus();
  return Malformed(file, "tensor ", wanted.gguf_name, " has dimensions [", absl::StrJoin(tensor.dims, ", "),
                   "], want [", absl::StrJoin(shape, ", "), "]");
}

// Others, such as tables of frequencies, are looked for by name.
bool OfTheModel(const std::string& name) {
  return absl::StartsWith(name, "blk.") || absl::StartsWith(name, "output") || absl::StartsWith(name, "token_embd");
}

// Ignoring a bias or a norm would give wrong numbers without an error.
absl::Status RefuseUnknown(const GgufFile& gguf, const std::set<std::string>& known) {
  for (const auto& [name, tensor] : gguf.tensors()) {
    if (known.contains(name) || !OfTheModel(name)) continue;
    if (absl::EndsWith(name, ".attn_rot_embd.weight") || absl::EndsWith(name, ".attn_rot_embd")) continue;  // a table
    return Unsupported(gguf.file(), "tensor ", Quoted(name), " has no place in this architecture and layer count");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::map<std::string, WeightSource>> ViewGgufTensors(const GgufFile& gguf, const ModelConfig& config) {
  std::map<std::string, WeightSource> sources;
  std::set<std::string> known;
  RETURN_IF_ERROR(ForEachWanted(config, [&](const WantedTensor& wanted) -> absl::Status {
    const auto it = gguf.tensors().find(wanted.gguf_name);
    if (it == gguf.tensors().end()) {
      return Malformed(gguf.file(), "tensor ", wanted.gguf_name, " is missing, want [", wanted.rows, "][", wanted.cols,
                       "]");
    }
    const GgufTensor& tensor = it->second;
    RETURN_IF_ERROR(CheckShape(gguf.file(), wanted, tensor));
    WeightSource source{.format = tensor.format,
                        .data = tensor.data.data(),
                        .rows = wanted.rows,
                        .cols = wanted.cols,
                        .row_bytes = RowBytes(tensor.format, wanted.cols)};
    if (wanted.rotary && config.architecture == Architecture::kLlama) {
      source.row_order = backend::RowOrder::kRopePairs;
      source.head_dim = config.head_dim;
    }
    sources.emplace(wanted.hf_name, source);
    known.insert(wanted.gguf_name);
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(RefuseUnknown(gguf, known));
  return sources;
}

}  // namespace swiftcache::engine::loader
