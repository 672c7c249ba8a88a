// SPDX-License-Identifier: Apache-2.0
// Parses the serialised ModelCard of an engine. The bytes come from the network and are checked like any such bytes.
//
//   ASSIGN_OR_RETURN(fleet::ModelCard card, ParseModelCard(bytes, expected_hash));
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "gateway/fleet/engine_client.h"

namespace swiftcache::gateway::rpc {

/// `hash` is the card's lower-case hex SHA-256.
/// DATA_LOSS: the bytes have another hash. INVALID_ARGUMENT: not a ModelCard, a larger one than CheckCardSize takes,
/// merges of odd length.
absl::StatusOr<fleet::ModelCard> ParseModelCard(const std::string& bytes, const std::string& hash);

}  // namespace swiftcache::gateway::rpc
