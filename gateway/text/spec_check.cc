// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/spec_check.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache::gateway::text {
namespace {

constexpr size_t kMaxVocabulary = size_t{1} << 24;

absl::Status Wrong(const std::string& field, const std::string& found, const std::string& wanted) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer ", field, ": found ", found, ", wanted ", wanted));
}

/// Checks ids against the vocabulary of one spec.
class IdCheck {
 public:
  explicit IdCheck(const TokenizerSpec& spec) : size_(static_cast<int64_t>(spec.tokens.size())) {}

  absl::Status Id(const std::string& field, int64_t id) const {
    if (id >= 0 && id < size_) return absl::OkStatus();
    return Wrong(field, absl::StrCat("id ", id), absl::StrCat("an id from 0 to ", size_ - 1));
  }
  absl::Status Id(const std::string& field, const std::optional<int32_t>& id) const {
    return id ? Id(field, *id) : absl::OkStatus();
  }
  absl::Status Length(const std::string& field, size_t length) const {
    if (length == size_) return absl::OkStatus();
    return Wrong(field, absl::StrCat(length, " entries"), absl::StrCat(size_, ", one for each token"));
  }

 private:
  const int64_t size_;
};

absl::Status CheckLengths(const TokenizerSpec& spec, const IdCheck& check) {
  if (spec.tokens.empty()) return Wrong("tokens", "none", "a vocabulary");
  if (spec.tokens.size() > kMaxVocabulary) {
    return Wrong("tokens", absl::StrCat(spec.tokens.size(), " entries"), absl::StrCat("at most ", kMaxVocabulary));
  }
  RETURN_IF_ERROR(check.Length("token_types", spec.token_types.size()));
  if (!spec.scores.empty()) RETURN_IF_ERROR(check.Length("scores", spec.scores.size()));
  for (size_t id = 0; id < spec.scores.size(); ++id) {
    if (!std::isfinite(spec.scores[id])) {
      return Wrong(absl::StrCat("scores[", id, "]"), absl::StrCat(spec.scores[id]), "a finite number");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMerges(const TokenizerSpec& spec, const IdCheck& check) {
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto [left, right] = spec.merges[rank];
    for (const int32_t id : {left, right}) {
      if (!check.Id("", id).ok()) return check.Id(absl::StrCat("merges[", rank, "]"), id);
      if (spec.tokens[id].empty())
        return Wrong(absl::StrCat("merges[", rank, "]"), "an empty token", "two tokens with text");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSpecialIds(const TokenizerSpec& spec, const IdCheck& check) {
  RETURN_IF_ERROR(check.Id("bos_id", spec.bos_id));
  RETURN_IF_ERROR(check.Id("eos_id", spec.eos_id));
  RETURN_IF_ERROR(check.Id("unk_id", spec.unk_id));
  if (spec.add_bos && !spec.bos_id) return Wrong("bos_id", "none", "an id, because add_bos is set");
  if (spec.add_eos && !spec.eos_id) return Wrong("eos_id", "none", "an id, because add_eos is set");
  for (size_t i = 0; i < spec.added_tokens.size(); ++i) {
    const std::string field = absl::StrCat("added_tokens[", i, "]");
    RETURN_IF_ERROR(check.Id(field, spec.added_tokens[i].id));
    if (spec.tokens[spec.added_tokens[i].id].empty()) return Wrong(field, "an empty token", "a token with text");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSpec(const TokenizerSpec& spec) {
  const IdCheck check(spec);
  RETURN_IF_ERROR(CheckLengths(spec, check));
  RETURN_IF_ERROR(CheckMerges(spec, check));
  return CheckSpecialIds(spec, check);
}

}  // namespace swiftcache::gateway::text
