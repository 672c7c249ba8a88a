// SPDX-License-Identifier: Apache-2.0
#include "services/flag_values.h"

#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/name.h"
#include "common/base/units.h"

namespace swiftcache::services {
namespace {

absl::Status Wanted(const std::string& text, const char* wanted) {
  return absl::InvalidArgumentError(absl::StrCat("found '", absl::CHexEscape(text), "', wanted ", wanted));
}

constexpr std::array<std::pair<const char*, int64_t>, 14> kUnits = {{{"", 1},
                                                                     {"b", 1},
                                                                     {"kib", kKiB},
                                                                     {"mib", kMiB},
                                                                     {"gib", kGiB},
                                                                     {"tib", 1024 * kGiB},
                                                                     {"k", kKiB},
                                                                     {"m", kMiB},
                                                                     {"g", kGiB},
                                                                     {"t", 1024 * kGiB},
                                                                     {"kb", 1'000},
                                                                     {"mb", 1'000'000},
                                                                     {"gb", 1'000'000'000},
                                                                     {"tb", 1'000'000'000'000}}};

}  // namespace

absl::StatusOr<int64_t> ParseInteger(const std::string& text) {
  int64_t value = 0;
  if (text.empty() || absl::ascii_isspace(text[0]) || !absl::SimpleAtoi(text, &value))
    return Wanted(text, "a whole number");
  return value;
}

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  const char* const wanted = "a size such as 64MiB or 1.5GiB";
  const size_t digits = text.find_first_not_of("0123456789.");
  const std::string unit = digits == std::string::npos ? "" : absl::AsciiStrToLower(text.substr(digits));
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(text.substr(0, digits), &number)) return Wanted(text, wanted);
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    const double bytes = number * static_cast<double>(factor);
    if (!(bytes < 9.0e18)) return Wanted(text, wanted);
    return static_cast<int64_t>(std::llround(bytes));
  }
  return Wanted(text, wanted);
}

absl::StatusOr<double> ParseFraction(const std::string& text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !(value > 0 && value <= 1)) return Wanted(text, "a number above 0, at most 1");
  return value;
}

absl::StatusOr<absl::Duration> ParseDuration(const std::string& text) {
  absl::Duration value;
  if (!absl::ParseDuration(text, &value)) return Wanted(text, "a duration such as 50ms, 60s or 2m");
  return value;
}

absl::StatusOr<std::string> ParseName(const std::string& text) {
  if (!IsName(text)) return Wanted(text.substr(0, kMaxNameBytes), "at most 128 letters, digits and ._:/@+-[]");
  return text;
}

absl::StatusOr<bool> ParseSwitch(const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (const char* yes : {"true", "1", "yes", "on"}) {
    if (lower == yes) return true;
  }
  for (const char* no : {"false", "0", "no", "off"}) {
    if (lower == no) return false;
  }
  return Wanted(text, "true or false");
}

std::string FormatBytes(int64_t bytes) {
  for (const auto& [factor, name] : {std::pair(kGiB, "GiB"), std::pair(kMiB, "MiB"), std::pair(kKiB, "KiB")}) {
    if (bytes >= factor && bytes % factor == 0) return absl::StrCat(bytes / factor, name);
  }
  return absl::StrCat(bytes);
}

}  // namespace swiftcache::services
