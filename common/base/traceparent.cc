// SPDX-License-Identifier: Apache-2.0
#include "common/base/traceparent.h"

#include <cstddef>

namespace swiftcache {
namespace {

constexpr std::string_view kForm = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";  // x: a digit
static_assert(kForm.size() == 55);

bool IsDigit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool HasForm(std::string_view header) {
  if (header.size() != kForm.size()) return false;
  for (size_t i = 0; i < kForm.size(); ++i) {
    if (kForm[i] == 'x' ? !IsDigit(header[i]) : header[i] != '-') return false;
  }
  return true;
}

bool AllZero(std::string_view digits) { return digits.find_first_not_of('0') == std::string_view::npos; }

}  // namespace

std::string ParseTraceparent(std::string_view header) {
  if (!HasForm(header)) return "";
  const std::string_view version = header.substr(0, 2), trace_id = header.substr(3, 32), parent = header.substr(36, 16);
  if (version == "ff" || AllZero(trace_id) || AllZero(parent)) return "";
  return std::string(header);
}

}  // namespace swiftcache
