// SPDX-License-Identifier: Apache-2.0
// Parses the values of flags: numbers, sizes, durations, switches. Errors say what was found and what is wanted.
//
//   ASSIGN_OR_RETURN(int64_t bytes, ParseBytes("1.5GiB"));
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace swiftcache::services {

// Errors of all: INVALID_ARGUMENT with the text found and the form wanted.

/// A decimal integer.
absl::StatusOr<int64_t> ParseInteger(const std::string& text);
/// A number with an optional unit: B, KiB, MiB, GiB, TiB, short K, M, G, T as containers have them, or KB, MB, GB, TB
/// (powers of 1000).
absl::StatusOr<int64_t> ParseBytes(const std::string& text);
/// A number above 0, at most 1.
absl::StatusOr<double> ParseFraction(const std::string& text);
/// As absl::ParseDuration: 50ms, 60s, 1m30s, 0.
absl::StatusOr<absl::Duration> ParseDuration(const std::string& text);
/// At most 128 letters, digits and ._:/@+-[] (or nothing), as the broker wants names of engines and models.
absl::StatusOr<std::string> ParseName(const std::string& text);
/// true, false, 1, 0, yes, no, on, off.
absl::StatusOr<bool> ParseSwitch(const std::string& text);

/// 67108864 as "64MiB": the largest unit that divides it.
std::string FormatBytes(int64_t bytes);

}  // namespace swiftcache::services
