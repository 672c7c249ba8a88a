// SPDX-License-Identifier: Apache-2.0
// The token ids of a sequence, where they may lie in two runs.
//
//   TokenView tokens = ids;                       // a vector, or any other run
//   TokenView tokens(prompt.first(96), rest);     // with blocks of 16 tokens
//   for (std::span<const int32_t> block = tokens.Run(i * 16, 16); ...)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glog/logging.h"

namespace swiftcache::engine::kv {

/// What it shares with others, then its own. Thread-safety: a value. Ownership: borrows both runs. Errors: none.
class TokenView {
 public:
  TokenView() = default;                                     // of nothing
  TokenView(std::span<const int32_t> own) : own_(own) {}     // NOLINT: a run is a view
  TokenView(const std::vector<int32_t>& own) : own_(own) {}  // NOLINT: likewise
  /// REQUIRES: `shared` is whole blocks, so that none lies in both.
  TokenView(std::span<const int32_t> shared, std::span<const int32_t> own) : shared_(shared), own_(own) {}

  int64_t size() const { return static_cast<int64_t>(shared_.size() + own_.size()); }
  /// REQUIRES: it lies wholly in one of the two.
  std::span<const int32_t> Run(int64_t begin, int64_t count) const {
    const auto shared = static_cast<int64_t>(shared_.size());
    if (begin >= shared) return own_.subspan(begin - shared, count);
    CHECK_LE(begin + count, shared) << "a block of tokens lies in two runs";
    return shared_.subspan(begin, count);
  }

 private:
  std::span<const int32_t> shared_, own_;
};

}  // namespace swiftcache::engine::kv
