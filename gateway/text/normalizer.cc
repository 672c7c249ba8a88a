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

bool WantsPrefix(const TokenizerSpec& spec, std::string_view text, bool begins_text) {
  if (!spec.add_space_prefix || text.empty()) return false;
  if (!spec.space_prefix_first_only) return true;
  return begins_text && text[0] != ' ' && !text.starts_with(kSpaceMark);
}

}  // namespace

std::string Normalize(const TokenizerSpec& spec, std::string_view text, bool begins_text) {
  std::string out = spec.normalizer == Normalizer::kNfc ? ToNfc(text) : std::string(text);
  if (spec.kind == TokenizerKind::kByteLevelBpe) return out;
  if (spec.remove_extra_whitespaces) out = WithoutExtraSpaces(out);
  if (WantsPrefix(spec, out, begins_text)) out.insert(out.begin(), ' ');
  if (spec.escape_whitespaces) absl::StrReplaceAll({{" ", kSpaceMark.data()}}, &out);
  return out;
}

}  // namespace swiftcache::gateway::text
