// SPDX-License-Identifier: Apache-2.0
// The tokens of a sequence: a prompt that it may share with others, and what was added.
//
//   TokenList tokens({prompt.begin(), cut}, {cut, prompt.end()});   // cut at the end of a block
//   tokens.push_back(token);
//   tokens.AppendTo(ids, computed, /*count=*/1);
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/kv/token_view.h"

namespace swiftcache::engine::sched {

/// Thread-safety: none. Ownership: of its own tokens; borrows the shared ones, which stay as they are. Errors: none.
class TokenList {
 public:
  TokenList() = default;
  explicit TokenList(std::vector<int32_t> own) : own_(std::move(own)) {}
  /// REQUIRES: `shared` is whole blocks.
  TokenList(std::span<const int32_t> shared, std::vector<int32_t> own) : shared_(shared), own_(std::move(own)) {}

  int64_t size() const { return static_cast<int64_t>(shared_.size() + own_.size()); }
  bool empty() const { return size() == 0; }
  std::span<const int32_t> shared() const { return shared_; }
  void push_back(int32_t token) { own_.push_back(token); }
  int32_t back() const { return own_.empty() ? shared_.back() : own_.back(); }
  /// Puts `count` of them, from `first` on, behind `ids`.
  void AppendTo(std::vector<int32_t>& ids, int64_t first, int64_t count) const {
    const auto shared = static_cast<int64_t>(shared_.size());
    const int64_t of_shared = std::clamp<int64_t>(shared - first, 0, count);
    const auto begin = shared_.begin() + std::min(first, shared);
    ids.insert(ids.end(), begin, begin + of_shared);
    const auto own = own_.begin() + std::max<int64_t>(0, first - shared);
    ids.insert(ids.end(), own, own + (count - of_shared));
  }
  operator kv::TokenView() const { return {shared_, own_}; }  // NOLINT: it is one

 private:
  std::span<const int32_t> shared_;
  std::vector<int32_t> own_;
};

}  // namespace swiftcache::engine::sched
