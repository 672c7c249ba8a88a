// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/normalizer.h"

#include "absl/strings/str_replace.h"
#include "gateway/text/nfc.h"

namespace swiftcache::gateway::text {
namespace {

/// Runs of spaces become one, those at both ends go.
std::string WithoutExtraSpaces(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' || (!out.empty() && out.back() != ' ')) out.push_back(c);
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace

std::string Normalize(const TokenizerSpec& spec, std::string_view text) {
  std::string out = spec.normalizer == Normalizer::kNfc ? ToNfc(text) : std::string(text);
  if (spec.kind == TokenizerKind::kByteLevelBpe) return out;
  if (spec.remove_extra_whitespaces) out = WithoutExtraSpaces(out);
  if (spec.add_space_prefix && !spec.space_prefix_first_only && !out.empty()) out.insert(out.begin(), ' ');
  if (spec.escape_whitespaces) absl::StrReplaceAll({{" ", kSpaceMark.data()}}, &out);
  return out;
}

std::string_view FirstPrefix(const TokenizerSpec& spec, std::string_view normalized) {
  if (spec.kind == TokenizerKind::kByteLevelBpe || !spec.add_space_prefix || !spec.space_prefix_first_only) return "";
  if (normalized.empty() || normalized[0] == ' ' || normalized.starts_with(kSpaceMark)) return "";
  return spec.escape_whitespaces ? kSpaceMark : " ";
}

}  // namespace swiftcache::gateway::text
