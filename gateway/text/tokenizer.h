// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back.
//
//   ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Create(spec));
//   std::vector<int32_t> ids = tokenizer->Encode("Hello", {});
//   std::string text = tokenizer->Decode(ids, /*skip_special=*/false);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/text/tokenizer_spec.h"

namespace swiftcache::gateway::text {

struct EncodeOptions {
  bool add_special = true;     // BOS/EOS where the model wants them
  bool parse_special = false;  // text that looks like a special token becomes that token
};

/// Thread-safety: immutable after Create. Ownership: owns its tables.
/// Errors: Create: INVALID_ARGUMENT names the field, the value found and wanted. Encode and Decode never fail.
class Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerSpec spec);
  virtual ~Tokenizer() = default;

  /// REQUIRES: `text` is valid UTF-8 (doors check).
  virtual std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const = 0;
  /// Bytes that are not UTF-8 become U+FFFD, one per maximal subpart. Ids outside the vocabulary are skipped.
  virtual std::string Decode(std::span<const int32_t> ids, bool skip_special) const = 0;
  /// The raw bytes of one token (may be a part of a character); "" for ids outside the vocabulary.
  virtual std::string TokenBytes(int32_t id) const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  /// Whether any number of unknown characters may cost one token or none.
  virtual bool DropsUnknownText() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
  virtual const TokenizerSpec& spec() const = 0;
};

}  // namespace swiftcache::gateway::text
