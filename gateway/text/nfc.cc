// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "common/base/utf8.h"
#include "gateway/text/utf8.h"

namespace swiftcache::gateway::text {
namespace {

constexpr int kMaxDecomposition = 32;            // canonical decompositions have at most 4 code points
constexpr uint8_t kFirstLeadToNormalise = 0xcc;  // U+0300; everything below is its own NFC

bool MayChange(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) >= kFirstLeadToNormalise; });
}

std::vector<utf8proc_int32_t> Decompose(std::string_view text) {
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size());
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = NextCharacter(text.substr(at));
    at += c.bytes;
    std::array<utf8proc_int32_t, kMaxDecomposition> parts;
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code_point), parts.data(), parts.size(),
                                               options, &boundary);
    out.insert(out.end(), parts.begin(), parts.begin() + std::clamp<utf8proc_ssize_t>(count, 0, parts.size()));
  }
  return out;
}

utf8proc_propval_t CombiningClass(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

/// Canonical ordering. utf8proc's own is quadratic in the length of a run of marks.
void OrderMarks(std::vector<utf8proc_int32_t>* text) {
  const auto is_mark = [](utf8proc_int32_t c) { return CombiningClass(c) != 0; };
  for (auto begin = std::find_if(text->begin(), text->end(), is_mark); begin != text->end();) {
    const auto end = std::find_if_not(begin, text->end(), is_mark);
    std::stable_sort(begin, end, [](auto a, auto b) { return CombiningClass(a) < CombiningClass(b); });
    begin = std::find_if(end, text->end(), is_mark);
  }
}

}  // namespace

std::string ToNfc(std::string_view text) {
  if (!MayChange(text)) return std::string(text);
  std::vector<utf8proc_int32_t> code_points = Decompose(text);
  OrderMarks(&code_points);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto length =
      utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), options);
  code_points.resize(std::max<utf8proc_ssize_t>(length, 0));
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t c : code_points) AppendUtf8(static_cast<char32_t>(c), &out);
  return out;
}

}  // namespace swiftcache::gateway::text
