// SPDX-License-Identifier: Apache-2.0
// The serialised model card, and the hash that identifies it.
//
//   ASSIGN_OR_RETURN(SerializedCard card, SerializeModelCard(checkpoint.card));
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/loader/model_card.h"

namespace swiftcache::engine::rpc {

struct SerializedCard {
  std::string bytes;  // proto ModelCard; the same card gives the same bytes
  std::string hash;   // lower-case hex SHA-256 of them
};

/// INVALID_ARGUMENT: a text that is not UTF-8 (chat template, pre-tokeniser), a larger card than CheckCardSize takes.
absl::StatusOr<SerializedCard> SerializeModelCard(const loader::ModelCard& card);

}  // namespace swiftcache::engine::rpc
