// SPDX-License-Identifier: Apache-2.0
// The pre-tokenisers that GGUF files name (tokenizer.ggml.pre), and a check of those given as a regular expression.
//
//   const std::optional<NamedPreTokenizer> pre = FindPreTokenizer("smollm");
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/loader/model_card.h"

namespace swiftcache::engine::loader {

/// What a name stands for. `add_bos` is the default for files that do not set it.
struct NamedPreTokenizer {
  std::vector<PreTokenizerStep> steps;
  Normalizer normalizer = Normalizer::kNone;
  bool ignore_merges = false;
  bool add_bos = false;
};

/// Nothing for a name that is not known.
std::optional<NamedPreTokenizer> FindPreTokenizer(std::string_view name);

PreTokenizerStep SplitRegexStep(std::string regex);
PreTokenizerStep IndividualDigitsStep();
/// GPT-2's regex: what Hugging Face's ByteLevel pre-tokeniser splits by.
PreTokenizerStep Gpt2Step();

/// Compiles `regex` as the gateway will (PCRE2, UTF and UCP). INVALID_ARGUMENT: PCRE2's message and the offset.
absl::Status CheckRegex(const std::string& file, const std::string& regex);

}  // namespace swiftcache::engine::loader
