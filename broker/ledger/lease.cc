// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/lease.h"

namespace swiftcache::broker::ledger {

const char* ReasonName(RevokeReason reason) {
  switch (reason) {
    case RevokeReason::kOperator:
      return "operator";
    case RevokeReason::kLimit:
      return "limit";
    case RevokeReason::kFairness:
      return "fairness";
    case RevokeReason::kBorrowerGone:
      return "borrower_gone";
  }
  return "unknown";
}

}  // namespace swiftcache::broker::ledger
