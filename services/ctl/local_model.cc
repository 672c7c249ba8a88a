// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/local_model.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "services/flag_values.h"

namespace swiftcache::services::ctl {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLeastShare = 64 * kMiB, kMostShare = 2 * kGiB;
constexpr int64_t kWeightsGrow = 4;  // from four bits in a file to bf16 in memory

// As engine_flags.cc has it, but that "." is the folder's name too.
std::string NameOfModel(const std::string& path) {
  fs::path p = fs::absolute(path).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

int64_t BytesOf(const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    const auto bytes = fs::file_size(path, error);
    return error ? 0 : static_cast<int64_t>(bytes);
  }
  int64_t sum = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.is_regular_file(error)) sum += BytesOf(entry.path());
  }
  return sum;
}

constexpr size_t kMaxEngineName = 60;  // its lease socket's path, and a suffix, are within what an address holds

// The first gets the model's name; more of them -2, -3, ... as engines call themselves.
std::string EngineName(std::string model, std::set<std::string>& taken) {
  std::replace(model.begin(), model.end(), '/', '_');
  if (model.size() > kMaxEngineName) model.resize(kMaxEngineName);
  std::string name = model;
  for (int i = 2; !taken.insert(name).second; ++i) name = absl::StrCat(model, "-", i);
  return name;
}

absl::StatusOr<LocalModel> ParseLocalModel(const std::string& argument) {
  LocalModel model = {.path = argument};
  std::error_code error;
  const size_t sign = argument.find('=');
  if (sign != std::string::npos && !fs::exists(argument, error)) {
    model = {.name = argument.substr(0, sign), .path = argument.substr(sign + 1)};
    if (model.name.empty() || model.path.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("'", argument, "' names no ",
                                                     model.name.empty() ? "model" : "file",
                                                     "; wanted a GGUF file or a Hugging Face folder, or NAME=PATH"));
    }
  }
  if (!fs::exists(model.path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no model at '", model.path, "'; wanted a GGUF file or a Hugging Face folder"));
  }
  if (model.name.empty()) model.name = NameOfModel(model.path);
  if (const auto name = ParseName(model.name); !name.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the model at '", model.path, "' cannot be called so: ",
                                                   name.status().message(), "; give it a name: NAME=", model.path));
  }
  model.file_bytes = BytesOf(model.path);
  return model;
}

// Engines of one name are of one model.
absl::Status CheckSameModel(const std::vector<LocalModel>& models, const LocalModel& added) {
  for (const LocalModel& model : models) {
    std::error_code error;
    if (model.name != added.name || fs::equivalent(model.path, added.path, error)) continue;
    return absl::InvalidArgumentError(absl::StrCat("model ", added.name, " is two: '", model.path, "' and '",
                                                   added.path, "'; give each a name of its own: NAME=PATH"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<LocalModel>> ParseLocalModels(const std::vector<std::string>& arguments) {
  std::vector<LocalModel> models;
  std::set<std::string> taken = {"broker", "gateway"};
  for (const std::string& argument : arguments) {
    absl::StatusOr<LocalModel> model = ParseLocalModel(argument);
    if (!model.ok()) return model.status();
    RETURN_IF_ERROR(CheckSameModel(models, *model));
    model->engine = EngineName(model->name, taken);
    models.push_back(*std::move(model));
  }
  return models;
}

int64_t KvCacheShare(int64_t free_bytes, const std::vector<LocalModel>& models) {
  int64_t room = free_bytes;
  for (const LocalModel& model : models) room -= kWeightsGrow * model.file_bytes;
  const int64_t share = room / 2 / static_cast<int64_t>(models.size()) / kMiB * kMiB;
  return std::clamp(share, kLeastShare, kMostShare);
}

}  // namespace swiftcache::services::ctl
