// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/hf_weights.h"

#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "engine/loader/errors.h"
#include "engine/loader/json_document.h"
#include "engine/loader/mapped_file.h"
#include "engine/loader/safetensors_file.h"
#include "engine/loader/weight_plan.h"

namespace swiftcache::engine::loader {

using backend::WeightSource;

namespace {

struct StoredTensor {
  SafetensorsTensor tensor;
  std::string file;
};

bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// The files that an index names, and the tensors that each must hold.
absl::StatusOr<std::map<std::string, std::set<std::string>>> ReadIndex(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(file.text(), path));
  ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(document, path, ""));
  ASSIGN_OR_RETURN(const JsonObject weight_map, root.RequireObject("weight_map"));
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, value] : weight_map.value().items()) {
    if (!value.is_string() || !IsPlainFileName(value.get_ref<const std::string&>())) {
      return Malformed(path, "key weight_map: tensor ", Quoted(tensor), " is in ", Describe(value),
                       ", want the name of a file in the same folder");
    }
    shards[value.get<std::string>()].insert(tensor);
  }
  if (shards.empty()) return Malformed(path, "key weight_map is empty, want tensors");
  return shards;
}

/// The mapped files and the tensors in them.
class HfWeights final : public Weights {
 public:
  absl::Status Open(const std::string& folder, const ModelConfig& config) {
    RETURN_IF_ERROR(OpenFiles(folder));
    RETURN_IF_ERROR(ForEachWanted(config, [&](const WantedTensor& wanted) { return Take(folder, wanted); }));
    return RefuseUnknown();
  }

 private:
  absl::Status OpenFiles(const std::string& folder) {
    const std::string single = folder + "/model.safetensors", index = single + ".index.json";
    if (FileExists(single)) return OpenFile(single, {});
    if (!FileExists(index)) {
      return absl::NotFoundError(absl::StrCat(folder, ": no model.safetensors and no model.safetensors.index.json: ",
                                              "convert its weights to safetensors, or take a GGUF file of the model"));
    }
    ASSIGN_OR_RETURN(const auto shards, ReadIndex(index));
    for (const auto& [name, tensors] : shards) RETURN_IF_ERROR(OpenFile(folder + "/" + name, tensors));
    return absl::OkStatus();
  }

  // Takes the tensors of one file; those of `promised` must be among them.
  absl::Status OpenFile(const std::string& path, const std::set<std::string>& promised) {
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    ASSIGN_OR_RETURN(auto tensors, ParseSafetensors(file.bytes(), path));
    for (const std::string& name : promised) {
      if (!tensors.contains(name))
        return Malformed(path, "tensor ", Quoted(name), " is missing, the index says it is here");
    }
    for (auto& [name, tensor] : tensors) {
      const auto [it, added] = stored_.emplace(name, StoredTensor{std::move(tensor), path});
      if (!added) return Malformed(path, "tensor ", Quoted(name), " is in ", it->second.file, " too, want it once");
    }
    files_.push_back(std::move(file));
    return absl::OkStatus();
  }

  absl::Status Take(const std::string& folder, const WantedTensor& wanted) {
    const std::vector<int64_t> shape =
        wanted.is_vector ? std::vector<int64_t>{wanted.cols} : std::vector<int64_t>{wanted.rows, wanted.cols};
    const auto it = stored_.find(wanted.hf_name);
    if (it == stored_.end()) {
      return Malformed(folder, "tensor ", wanted.hf_name, " is missing, want [", absl::StrJoin(shape, ", "), "]");
    }
    const auto& [tensor, file] = it->second;
    if (!tensor.format) {
      return Unsupported(file, "tensor ", wanted.hf_name, " has dtype ", tensor.dtype, ", want F32, F16 or BF16");
    }
    if (tensor.shape != shape) {
      return Malformed(file, "tensor ", wanted.hf_name, " has shape [", absl::StrJoin(tensor.shape, ", "), "], want [",
                       absl::StrJoin(shape, ", "), "] (config.json)");
    }
    tensors_.emplace(wanted.hf_name, WeightSource{.format = *tensor.format,
                                                  .data = tensor.data.data(),
                                                  .rows = wanted.rows,
                                                  .cols = wanted.cols,
                                                  .row_bytes = RowBytes(*tensor.format, wanted.cols)});
    return absl::OkStatus();
  }

  // Ignoring a bias or a norm would give wrong numbers without an error.
  absl::Status RefuseUnknown() const {
    for (const auto& [name, stored] : stored_) {
      if (!absl::StartsWith(name, "model.layers.") || tensors_.contains(name)) continue;
      if (absl::EndsWith(name, ".rotary_emb.inv_freq")) continue;  // a table that older versions saved
      return Unsupported(stored.file, "tensor ", Quoted(name), " has no place in this architecture and layer count");
    }
    return absl::OkStatus();
  }

  std::vector<MappedFile> files_;
  std::map<std::string, StoredTensor> stored_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Weights>> OpenHfWeights(const std::string& folder, const ModelConfig& config) {
  auto weights = std::make_unique<HfWeights>();
  RETURN_IF_ERROR(weights->Open(folder, config));
  return weights;
}

}  // namespace swiftcache::engine::loader
