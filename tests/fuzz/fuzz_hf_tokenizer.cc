// SPDX-License-Identifier: Apache-2.0
// Any text as tokenizer.json, tokenizer_config.json and config.json.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/loader/hf_config.h"
#include "engine/loader/hf_model_card.h"
#include "engine/loader/hf_tokenizer.h"

namespace {

using namespace swiftcache::engine::loader;

// What every reader of a spec relies on.
void CheckSpec(const TokenizerSpec& spec) {
  const auto vocab = static_cast<int64_t>(spec.tokens.size());
  if (spec.token_types.size() != spec.tokens.size()) std::abort();
  for (const auto& [left, right] : spec.merges) {
    if (left < 0 || left >= vocab || right < 0 || right >= vocab) std::abort();
  }
  for (const AddedToken& token : spec.added_tokens) {
    if (token.id < 0 || token.id >= vocab) std::abort();
  }
  if (spec.add_bos && !spec.bos_id) std::abort();
  if (spec.add_eos && !spec.eos_id) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ParseHfConfig(text, "config.json").IgnoreError();
  ModelCard card;
  card.tokenizer.tokens = {"<s>", "</s>"};
  card.tokenizer.token_types = {TokenType::kControl, TokenType::kControl};
  AddTokenizerConfig(text, "tokenizer_config.json", card).IgnoreError();
  CheckSpec(card.tokenizer);
  const auto spec = ParseHfTokenizer(text, "tokenizer.json", 4096);
  if (spec.ok()) CheckSpec(*spec);
  return 0;
}
