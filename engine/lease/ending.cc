// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/ending.h"

namespace swiftcache::engine::lease {

const char* EndingName(Ending ending) {
  switch (ending) {
    case Ending::kGivenBack:
      return "given_back";
    case Ending::kNeed:
      return "need";
    case Ending::kOperator:
      return "operator";
    case Ending::kLimit:
      return "limit";
    case Ending::kFairness:
      return "fairness";
    case Ending::kBroker:
      return "broker";
    case Ending::kShutdown:
      return "shutdown";
    case Ending::kBorrowerGone:
      return "borrower_gone";
  }
  return "unknown";
}

}  // namespace swiftcache::engine::lease
