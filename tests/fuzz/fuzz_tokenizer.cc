// SPDX-License-Identifier: Apache-2.0
// Builds a tokenizer from bytes and puts text through it and back: nothing crashes, nothing grows without bound, and
// streaming equals decoding at once.
//
// Input: 4 bytes of switches | then fields, each one byte of length and that many bytes | the last field is the text.
#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/utf8.h"
#include "gateway/text/detokenizer.h"
#include "gateway/text/tokenizer.h"

namespace swiftcache::gateway::text {
namespace {

/// Reads numbers and strings off the front; zeros and "" at the end.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(bytes_[0]);
    bytes_.remove_prefix(1);
    return byte;
  }
  std::string Field() {
    const std::string field(bytes_.substr(0, std::min<size_t>(Byte(), bytes_.size())));
    bytes_.remove_prefix(field.size());
    return field;
  }
  std::string_view Rest() const { return bytes_; }

 private:
  std::string_view bytes_;
};

std::optional<int32_t> OptionalId(uint8_t byte) {
  return byte == 0 ? std::nullopt : std::optional<int32_t>(static_cast<int8_t>(byte));
}

void ReadSwitches(Reader& in, TokenizerSpec& spec) {
  const uint8_t a = in.Byte(), b = in.Byte();
  spec.kind = a & 1 ? TokenizerKind::kSentencePieceBpe : TokenizerKind::kByteLevelBpe;
  spec.normalizer = a & 2 ? Normalizer::kNfc : Normalizer::kNone;
  spec.add_space_prefix = a & 4;
  spec.byte_fallback = a & 8;
  spec.ignore_merges = a & 16;
  spec.add_bos = a & 32;
  spec.add_eos = a & 64;
  spec.fuse_unk = a & 128;
  spec.remove_extra_whitespaces = b & 1;
  spec.escape_whitespaces = b & 2;
  spec.space_prefix_first_only = b & 4;
  if (b & 8) spec.scores = {0};
}

void ReadVocabulary(Reader& in, TokenizerSpec& spec) {
  const bool scored = !spec.scores.empty();
  spec.scores.clear();
  for (int n = in.Byte(); n > 0; --n) {
    spec.tokens.push_back(in.Field());
    const uint8_t type = in.Byte();
    spec.token_types.push_back(static_cast<TokenType>(type % 6));
    if (scored) spec.scores.push_back(static_cast<float>(type >> 3));
  }
  for (int n = in.Byte() % 64; n > 0; --n) {
    const int32_t left = static_cast<int8_t>(in.Byte()), right = static_cast<int8_t>(in.Byte());
    spec.merges.emplace_back(left, right);
  }
  for (int n = in.Byte() % 8; n > 0; --n) {
    const int32_t id = static_cast<int8_t>(in.Byte());
    const uint8_t flags = in.Byte();
    spec.added_tokens.push_back({.id = id,
                                 .special = (flags & 1) != 0,
                                 .lstrip = (flags & 2) != 0,
                                 .rstrip = (flags & 4) != 0,
                                 .single_word = (flags & 8) != 0,
                                 .normalized = (flags & 16) != 0});
  }
}

TokenizerSpec ReadSpec(Reader& in) {
  TokenizerSpec spec;
  ReadSwitches(in, spec);
  spec.bos_id = OptionalId(in.Byte());
  spec.eos_id = spec.unk_id = OptionalId(in.Byte());
  ReadVocabulary(in, spec);
  for (int n = in.Byte() % 4; n > 0; --n) {
    const bool digits = in.Byte() % 4 == 0;
    spec.pre_tokenizer.push_back(
        {digits ? PreTokenizerStep::Kind::kIndividualDigits : PreTokenizerStep::Kind::kSplitRegex,
         digits ? "" : in.Field()});
  }
  return spec;
}

void CheckRoundTrip(const Tokenizer& tokenizer, std::string_view text, const std::vector<std::string>& stop) {
  for (const bool parse_special : {false, true}) {
    const std::vector<int32_t> ids = tokenizer.Encode(text, {.parse_special = parse_special});
    for (const int32_t id : ids) CHECK(id >= 0 && id < tokenizer.vocab_size()) << id;
    CHECK(IsValidUtf8(tokenizer.Decode(ids, /*skip_special=*/false)));
    const std::string whole = tokenizer.Decode(ids, /*skip_special=*/true);
    Detokenizer plain(tokenizer, {}), stopping(tokenizer, stop);
    std::string streamed, cut;
    for (const int32_t id : ids) {
      streamed += plain.Push(id);
      cut += stopping.Push(id);
    }
    CHECK(streamed + plain.Flush() == whole);
    cut += stopping.Flush();
    CHECK(whole.starts_with(cut) && (stopping.stopped() || cut == whole));
  }
}

}  // namespace
}  // namespace swiftcache::gateway::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace swiftcache::gateway::text;
  Reader in({reinterpret_cast<const char*>(data), std::min<size_t>(size, 4096)});
  const auto tokenizer = Tokenizer::Create(ReadSpec(in));
  if (!tokenizer.ok()) return 0;
  const std::vector<std::string> stop = {in.Field(), in.Field()};
  CheckRoundTrip(**tokenizer, in.Rest(), stop);
  return 0;
}
