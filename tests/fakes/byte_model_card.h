// SPDX-License-Identifier: Apache-2.0
// A model whose tokens are the 256 bytes (id = byte) and three special ones, so that tests can read ids as text.
#pragma once

#include <string>
#include <vector>

#include "gateway/fleet/engine_client.h"
#include "gateway/text/byte_alphabet.h"

namespace swiftcache::fakes {

inline constexpr int32_t kEos = 256, kImStart = 257, kImEnd = 258;

inline std::string Utf8Of(char32_t letter) {  // the byte alphabet ends below U+0800
  if (letter < 0x80) return std::string(1, static_cast<char>(letter));
  return {static_cast<char>(0xC0 | (letter >> 6)), static_cast<char>(0x80 | (letter & 0x3F))};
}

inline gateway::fleet::ModelCard ByteModelCard(const std::string& chat_template) {
  gateway::fleet::ModelCard card;
  for (int byte = 0; byte < 256; ++byte) {
    card.tokenizer.tokens.push_back(Utf8Of(gateway::text::ByteToLetter(static_cast<uint8_t>(byte))));
    card.tokenizer.token_types.push_back(gateway::text::TokenType::kNormal);
  }
  for (const char* special : {"<|eos|>", "<|im_start|>", "<|im_end|>"}) {
    card.tokenizer.added_tokens.push_back({.id = static_cast<int32_t>(card.tokenizer.tokens.size()), .special = true});
    card.tokenizer.tokens.push_back(special);
    card.tokenizer.token_types.push_back(gateway::text::TokenType::kControl);
  }
  card.tokenizer.eos_id = kEos;
  card.chat_template = chat_template;
  card.vocab_size = 300;  // rows beyond the tokenizer's vocabulary
  return card;
}

inline const char kChatMl[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

inline std::vector<int32_t> Bytes(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

}  // namespace swiftcache::fakes
