// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/memory_limit.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr char kMps[] = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", kHook[] = "CUDA_DEVICE_MEMORY_LIMIT";
constexpr int kMaxGpus = 64;  // of a machine, for which a hook may have variables

using Variables = absl::FunctionRef<const char*(const char*)>;

absl::string_view ValueOf(Variables variable, const std::string& name) {
  const char* const value = variable(name.c_str());
  return value == nullptr ? absl::string_view() : absl::StripAsciiWhitespace(value);
}

absl::Status Unreadable(const std::string& name, absl::string_view value, const char* wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is '", value, "'; wanted ", wanted, ": correct it, or unset it"));
}

// "3000m", "10G", "512MB"; "1048576" where bytes need no unit.
std::optional<int64_t> ParseSize(absl::string_view text, bool needs_unit) {
  std::string size = absl::AsciiStrToLower(text);
  int shift = 0;
  if (size.size() > 1 && size.back() == 'b' && !absl::ascii_isdigit(size[size.size() - 2])) size.pop_back();
  if (const size_t unit = size.empty() ? std::string::npos : std::string("kmg").find(size.back());
      unit != std::string::npos) {
    shift = 10 * (static_cast<int>(unit) + 1);
    size.pop_back();
  }
  int64_t number = 0;
  const bool digits = std::all_of(size.begin(), size.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(size, &number) || (needs_unit && shift == 0)) return std::nullopt;
  if (number > std::numeric_limits<int64_t>::max() >> shift) return std::nullopt;
  return number << shift;
}

// Which of the GPUs that a variable names may be this process's.
class OurGpu {
 public:
  OurGpu(Variables variable, std::string_view uuid) : uuid_(uuid) {
    const std::pair<absl::string_view, absl::string_view> visible =
        absl::StrSplit(ValueOf(variable, "CUDA_VISIBLE_DEVICES"), absl::MaxSplits(',', 1));
    const absl::string_view first = absl::StripAsciiWhitespace(visible.first);
    any_ordinal_ = !first.empty() && !absl::SimpleAtoi(first, &ordinal_);
  }
  bool MayBe(int ordinal) const { return any_ordinal_ || ordinal == 0 || ordinal == ordinal_; }
  /// Of an ordinal, or a UUID or its beginning; none: it is neither.
  std::optional<bool> MayBe(absl::string_view gpu) const {
    if (int ordinal = 0; absl::SimpleAtoi(gpu, &ordinal))
      return ordinal < 0 ? std::nullopt : std::optional(MayBe(ordinal));
    if (!absl::ConsumePrefix(&gpu, "GPU-") && !absl::ConsumePrefix(&gpu, "MIG-")) return std::nullopt;
    return absl::StartsWith(uuid_, absl::AsciiStrToLower(absl::StrReplaceAll(gpu, {{"-", ""}})));
  }

 private:
  const std::string uuid_;
  int ordinal_ = 0;  // on the machine
  bool any_ordinal_ = false;
};

void TakeSmaller(std::optional<MemoryLimit>& limit, int64_t bytes, const std::string& name, absl::string_view value) {
  if (!limit || bytes < limit->bytes) limit = {.bytes = bytes, .source = absl::StrCat(name, "=", value)};
}

absl::Status ReadMps(Variables variable, const OurGpu& gpu, std::optional<MemoryLimit>& limit) {
  const absl::string_view value = ValueOf(variable, kMps);
  if (value.empty()) return absl::OkStatus();
  for (const absl::string_view entry : absl::StrSplit(value, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(entry, absl::MaxSplits('=', 1));
    const std::optional<bool> ours = gpu.MayBe(absl::StripAsciiWhitespace(parts.first));
    const std::optional<int64_t> bytes = ParseSize(absl::StripAsciiWhitespace(parts.second), /*needs_unit=*/true);
    if (!ours || bytes.value_or(0) == 0) {
      return Unreadable(kMps, value, "GPUs by ordinal or UUID, each with a size in M or G, as in 0=10G,1=512M");
    }
    if (*ours) TakeSmaller(limit, *bytes, kMps, value);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ReadHook(Variables variable, const std::string& name, std::optional<MemoryLimit>& limit) {
  const absl::string_view value = ValueOf(variable, name);
  if (value.empty()) return false;
  const std::optional<int64_t> bytes = ParseSize(value, /*needs_unit=*/false);
  if (!bytes) return Unreadable(name, value, "a size, as in 3000m, 2g or 2147483648, or 0 for no limit");
  if (*bytes == 0) return false;
  TakeSmaller(limit, *bytes, name, value);
  return true;
}

}  // namespace

absl::StatusOr<std::optional<MemoryLimit>> ReadMemoryLimit(Variables variable, std::string_view uuid) {
  const OurGpu gpu(variable, uuid);
  std::optional<MemoryLimit> limit;
  RETURN_IF_ERROR(ReadMps(variable, gpu, limit));
  bool has_own = false;
  for (int ordinal = 0; ordinal < kMaxGpus; ++ordinal) {
    if (!gpu.MayBe(ordinal)) continue;
    ASSIGN_OR_RETURN(const bool found, ReadHook(variable, absl::StrCat(kHook, "_", ordinal), limit));
    has_own |= found;
  }
  if (!has_own) RETURN_IF_ERROR(ReadHook(variable, kHook, limit).status());
  return limit;
}

DeviceMemory Limited(DeviceMemory memory, const std::optional<MemoryLimit>& limit, int64_t taken_bytes) {
  if (!limit || limit->bytes >= memory.total_bytes) return memory;
  memory.total_bytes = limit->bytes;
  memory.free_bytes = std::clamp<int64_t>(limit->bytes - taken_bytes, 0, memory.free_bytes);
  memory.limited_by = limit->source;
  return memory;
}

}  // namespace swiftcache::engine::backend::cuda
