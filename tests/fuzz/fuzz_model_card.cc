// SPDX-License-Identifier: Apache-2.0
// Model cards as engines send them: one that has the hash it is wanted by is taken whole and makes a tokenizer, or there
// is one clear error.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/base/sha256.h"
#include "gateway/rpc/card_convert.h"
#include "gateway/text/tokenizer.h"
#include "swiftcache/v1/engine.pb.h"

namespace {

using swiftcache::gateway::rpc::ParseModelCard;

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckTaken(const swiftcache::gateway::fleet::ModelCard& card, const std::string& bytes) {
  swiftcache::v1::ModelCard sent;
  Require(sent.ParseFromString(bytes));
  const auto& tokenizer = card.tokenizer;
  Require(card.chat_template == sent.chat_template() && card.vocab_size == sent.vocab_size());
  Require(static_cast<int>(tokenizer.tokens.size()) == sent.tokenizer().tokens_size() &&
          static_cast<int>(tokenizer.token_types.size()) == sent.tokenizer().token_types_size() &&
          static_cast<int>(tokenizer.scores.size()) == sent.tokenizer().scores_size() &&
          2 * static_cast<int>(tokenizer.merges.size()) == sent.tokenizer().merges_size() &&
          static_cast<int>(tokenizer.pre_tokenizer.size()) == sent.tokenizer().pre_tokenizer_size() &&
          static_cast<int>(tokenizer.added_tokens.size()) == sent.tokenizer().added_tokens_size());
  const auto made = swiftcache::gateway::text::Tokenizer::Create(tokenizer);
  Require(made.ok() || !made.status().message().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), std::min<size_t>(size, 4096));
  Require(ParseModelCard(bytes, "0").status().code() == absl::StatusCode::kDataLoss);
  const auto card = ParseModelCard(bytes, swiftcache::Sha256Hex(bytes));
  if (card.ok()) {
    CheckTaken(*card, bytes);
  } else {
    Require(card.status().code() == absl::StatusCode::kInvalidArgument && !card.status().message().empty());
  }
  return 0;
}
