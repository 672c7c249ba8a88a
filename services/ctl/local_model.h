// SPDX-License-Identifier: Apache-2.0
// A model that `swiftcachectl up` is told to serve, and how much KV memory its engine gets.
//
//   ASSIGN_OR_RETURN(std::vector<LocalModel> models, ParseLocalModels({"chat=/models/small.gguf", "/models/code"}));
//   int64_t bytes = KvCacheShare(ReadMemoryHeadroom({}).bytes, models);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace swiftcache::services::ctl {

/// Thread-safety: a value.
struct LocalModel {
  std::string name;    // what clients call it
  std::string engine;  // of all engines the only one with this name, and a file can be called so
  std::string path;
  int64_t file_bytes = 0;
};

/// Each as PATH or NAME=PATH. Without NAME it is what swiftcache-engine would say: the file's name without .gguf, or the
/// folder's. Errors: INVALID_ARGUMENT where there is no such model, it cannot be called so, or two are
/// called alike.
absl::StatusOr<std::vector<LocalModel>> ParseLocalModels(const std::vector<std::string>& arguments);

/// For each engine: its share of half of what the weights leave of `free_bytes`, 64MiB to 2GiB. REQUIRES: a model.
int64_t KvCacheShare(int64_t free_bytes, const std::vector<LocalModel>& models);

}  // namespace swiftcache::services::ctl
