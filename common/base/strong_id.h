// SPDX-License-Identifier: Apache-2.0
// Identifiers of different kinds as different types: a BlockId cannot be passed where a SequenceId is wanted.
//
//   using BlockId = StrongId<struct BlockIdTag, int32_t>;
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>
#include <utility>

namespace swiftcache {

/// Thread-safety: a value. Errors: none.
template <typename Tag, typename Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << id.value_; }
  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Rep value_{};
};

}  // namespace swiftcache

template <typename Tag, typename Rep>
struct std::hash<swiftcache::StrongId<Tag, Rep>> {
  size_t operator()(swiftcache::StrongId<Tag, Rep> id) const { return std::hash<Rep>()(id.value()); }
};
