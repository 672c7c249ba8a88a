// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

namespace swiftcache::engine::lease {

/// Why a lease that was granted has ended.
enum class Ending {
  kGivenBack,     // its borrower used it no more
  kNeed,          // the donor needed its memory
  kOperator,      // the broker wanted it revoked, as an operator did,
  kLimit,         // as its borrower's model had more than an operator allows,
  kFairness,      // as another borrower's share was smaller,
  kBroker,        // or for a reason that is unknown here; or it refused the lease
  kShutdown,      // the donor ends
  kBorrowerGone,  // its borrower died, renewed no more, or never came
};
inline constexpr std::array kEndings = {Ending::kGivenBack, Ending::kNeed,   Ending::kOperator, Ending::kLimit,
                                        Ending::kFairness,  Ending::kBroker, Ending::kShutdown, Ending::kBorrowerGone};

/// Lower case, for metrics and logs.
const char* EndingName(Ending ending);

}  // namespace swiftcache::engine::lease
