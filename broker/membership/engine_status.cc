// SPDX-License-Identifier: Apache-2.0
#include "broker/membership/engine_status.h"

#include <algorithm>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/name.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"

namespace swiftcache::broker::membership {
namespace {

absl::Status CheckName(const char* field, const std::string& name) {
  if (!name.empty() && IsName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " '", absl::CHexEscape(name.substr(0, kMaxNameBytes)), "': wanted 1 to ", kMaxNameBytes,
                   " characters of letters, digits and ", kNamePunctuation, "; name it otherwise"));
}

absl::Status CheckNameIfAny(const char* field, const std::string& name) {
  return name.empty() ? absl::OkStatus() : CheckName(field, name);
}

absl::Status CheckPositive(const char* field, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", wanted more than 0"));
}

// What K (or V) of one token and KV head takes in one layer.
struct ElementType {
  const char* name;
  int64_t element_bytes, scale_bytes;
};
constexpr ElementType kElementTypes[] = {{"bf16", 2, 0}, {"f32", 4, 0}, {"int8", 1, 4}};

const ElementType* FindElementType(const std::string& name) {
  for (const ElementType& type : kElementTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

// Bytes of a block by the geometry: 2 (k, v) x layers x tokens x heads x (head_dim x bytes per element + scale).
std::optional<int64_t> BlockBytes(const KvGeometry& kv, const ElementType& type) {
  std::optional<int64_t> bytes = CheckedMul(kv.head_dim, type.element_bytes);
  if (bytes.has_value()) bytes = CheckedAdd(*bytes, type.scale_bytes);
  for (const int64_t factor : {int64_t{2}, kv.num_layers, kv.block_tokens, kv.num_kv_heads}) {
    if (bytes.has_value()) bytes = CheckedMul(*bytes, factor);
  }
  return bytes;
}

absl::Status CheckGeometry(const KvGeometry& kv) {
  RETURN_IF_ERROR(CheckPositive("kv.num_layers", kv.num_layers));
  RETURN_IF_ERROR(CheckPositive("kv.num_kv_heads", kv.num_kv_heads));
  RETURN_IF_ERROR(CheckPositive("kv.head_dim", kv.head_dim));
  RETURN_IF_ERROR(CheckPositive("kv.block_tokens", kv.block_tokens));
  const ElementType* type = FindElementType(kv.kv_cache_dtype);
  if (type == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv.kv_cache_dtype is '", absl::CHexEscape(kv.kv_cache_dtype), "', wanted bf16, f32 or int8"));
  }
  const std::optional<int64_t> wanted = BlockBytes(kv, *type);
  if (wanted != kv.block_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv.block_bytes is ", kv.block_bytes, ", wanted ",
                     wanted.has_value() ? absl::StrCat(*wanted) : std::string("a product within 64 bits"),
                     " (2 x num_layers x block_tokens x num_kv_heads x (head_dim x ", type->element_bytes, " + ",
                     type->scale_bytes, "))"));
  }
  return absl::OkStatus();
}

// An engine that is starting may have no blocks yet; even then one block must be within the limit.
absl::Status CheckArena(const KvGeometry& kv) {
  const int64_t max_blocks = kMaxArenaBytes / kv.block_bytes;
  if (max_blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("kv.block_bytes is ", kv.block_bytes, ", wanted at most ",
                                                   kMaxArenaBytes, ", the largest arena; choose fewer --block_tokens"));
  }
  if (kv.num_blocks >= 0 && kv.num_blocks <= max_blocks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("kv.num_blocks is ", kv.num_blocks, ", wanted 0 to ", max_blocks,
                                                 " blocks of ", kv.block_bytes, " bytes: an arena has at most ",
                                                 kMaxArenaBytes, "; choose fewer --kv_cache_bytes"));
}

// The longest path that a Unix socket can have.
constexpr size_t kMaxChannelBytes = 107;
constexpr int64_t kMaxPageBytes = kGiB;

absl::Status CheckSharing(const EngineInfo& info) {
  RETURN_IF_ERROR(CheckNameIfAny("node_id", info.node_id));
  if (info.page_bytes < 0 || info.page_bytes > kMaxPageBytes || (info.page_bytes == 0 && !info.lease_channel.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_bytes is ", info.page_bytes, ", wanted 1 to ", kMaxPageBytes, " with a lease_channel"));
  }
  if (info.never_lent_blocks < 0 || info.never_lent_blocks > info.kv.num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat("never_lent_blocks is ", info.never_lent_blocks,
                                                   ", wanted 0 to the arena's ", info.kv.num_blocks));
  }
  if (info.lease_channel.empty()) return absl::OkStatus();
  const bool printable =
      std::all_of(info.lease_channel.begin(), info.lease_channel.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (!printable || info.lease_channel.size() > kMaxChannelBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "lease_channel '", absl::CHexEscape(info.lease_channel.substr(0, kMaxNameBytes)),
        "': wanted a path of at most ", kMaxChannelBytes, " printable characters; choose another --shm_dir"));
  }
  return CheckName("node_id", info.node_id);
}

}  // namespace

const char* StateName(EngineState state) {
  switch (state) {
    case EngineState::kStarting:
      return "starting";
    case EngineState::kReady:
      return "ready";
    case EngineState::kDraining:
      return "draining";
    case EngineState::kStalled:
      return "stalled";
  }
  return "unknown";
}

absl::Status Validate(const EngineInfo& info) {
  RETURN_IF_ERROR(CheckName("name", info.name));
  RETURN_IF_ERROR(CheckName("instance_id", info.instance_id));
  RETURN_IF_ERROR(CheckName("model_name", info.model_name));
  RETURN_IF_ERROR(CheckGeometry(info.kv));
  RETURN_IF_ERROR(CheckPositive("max_model_len_tokens", info.max_model_len_tokens));
  RETURN_IF_ERROR(CheckArena(info.kv));
  RETURN_IF_ERROR(CheckSharing(info));
  RETURN_IF_ERROR(CheckNameIfAny("model_card_hash", info.model_card_hash));
  RETURN_IF_ERROR(CheckNameIfAny("address", info.address));
  if (info.state == EngineState::kStarting) return absl::OkStatus();
  if (info.state == EngineState::kStalled) {
    return absl::InvalidArgumentError(
        "state is STALLED, wanted STARTING, READY or DRAINING: stalled is the broker's verdict");
  }
  RETURN_IF_ERROR(CheckName("address", info.address));
  return CheckPositive("kv.num_blocks", info.kv.num_blocks);
}

}  // namespace swiftcache::broker::membership
