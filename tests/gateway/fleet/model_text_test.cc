// SPDX-License-Identifier: Apache-2.0
#include "gateway/fleet/model_text.h"

#include "tests/fakes/byte_model_card.h"
#include "tests/gateway/text/specs.h"

namespace swiftcache::gateway::fleet {
namespace {

int64_t MaxTokenBytesOf(text::TokenizerSpec spec) {
  const auto made = ModelText::Create({.tokenizer = std::move(spec), .chat_template = "", .vocab_size = 0});
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? (*made)->max_token_bytes() : -1;
}

text::TokenizerSpec WithoutByte(text::TokenizerSpec spec, const std::string& token) {
  spec.token_types[static_cast<size_t>(text::IdOf(spec, token))] = text::TokenType::kUnused;
  return spec;
}

// As GGUF's SentencePiece models come: unknown tokens would be fused, but there are none.
TEST(ModelTextTest, ATokenHasABoundWhereEveryByteHasAToken) {
  text::TokenizerSpec spec = text::ScoredSpec({"▁hello"});
  spec.fuse_unk = true;
  EXPECT_EQ(MaxTokenBytesOf(spec), 8);
  EXPECT_EQ(MaxTokenBytesOf(fakes::ByteModelCard("").tokenizer), 12) << "the length of <|im_start|>";
}

TEST(ModelTextTest, ATokenHasNoBoundWhereUnknownTextIsFusedOrDropped) {
  text::TokenizerSpec fused = text::ScoredSpec({"▁hello"});
  fused.fuse_unk = true;
  EXPECT_EQ(MaxTokenBytesOf(WithoutByte(fused, "<0xE2>")), 0);
  text::TokenizerSpec without_fallback = fused;
  without_fallback.byte_fallback = false;
  EXPECT_EQ(MaxTokenBytesOf(without_fallback), 0);
  text::TokenizerSpec nothing_unknown = WithoutByte(text::ScoredSpec({"▁hello"}), "<0xE2>");
  EXPECT_EQ(MaxTokenBytesOf(nothing_unknown), 8) << "each unknown character is a token";
  nothing_unknown.unk_id = std::nullopt;
  EXPECT_EQ(MaxTokenBytesOf(nothing_unknown), 0);
}

}  // namespace
}  // namespace swiftcache::gateway::fleet
