// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/pre_tokenizers.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <utility>

#include "engine/loader/errors.h"

namespace swiftcache::engine::loader {
namespace {

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Llama 3 takes digits in threes, Qwen 2 one by one; the rest is the same.
constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen35[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekken[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

template <size_t kSize>
bool OneOf(std::string_view name, const std::array<std::string_view, kSize>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr auto kGpt2Names = std::to_array<std::string_view>(
    {"gpt-2", "gpt2", "phi-2", "mpt", "olmo", "exaone4", "gigachat", "granite-docling", "trillion", "jais"});
constexpr auto kDigitsNames = std::to_array<std::string_view>(
    {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"});
constexpr auto kLlama3Names =
    std::to_array<std::string_view>({"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"});

NamedPreTokenizer Regexes(std::initializer_list<const char*> regexes) {
  NamedPreTokenizer pre;
  for (const char* regex : regexes) pre.steps.push_back(SplitRegexStep(regex));
  return pre;
}

// What llama.cpp uses for files that name no pre-tokeniser, since they are older than the key.
NamedPreTokenizer DefaultPreTokenizer() {
  return Regexes({R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", R"([0-9][0-9][0-9])"});
}

NamedPreTokenizer Falcon() { return Regexes({R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, R"([0-9][0-9][0-9])"}); }

NamedPreTokenizer DeepSeekCoder() {
  return Regexes({R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                  R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)", R"(\p{N})"});
}

}  // namespace

PreTokenizerStep SplitRegexStep(std::string regex) { return {PreTokenizerStep::Kind::kSplitRegex, std::move(regex)}; }

PreTokenizerStep IndividualDigitsStep() { return {PreTokenizerStep::Kind::kIndividualDigits, ""}; }

PreTokenizerStep Gpt2Step() { return SplitRegexStep(kGpt2); }

std::optional<NamedPreTokenizer> FindPreTokenizer(std::string_view name) {
  if (OneOf(name, kGpt2Names)) return Regexes({kGpt2});
  if (OneOf(name, kDigitsNames)) {
    return NamedPreTokenizer{{IndividualDigitsStep(), Gpt2Step()}, Normalizer::kNone, false, false};
  }
  if (OneOf(name, kLlama3Names)) return NamedPreTokenizer{{SplitRegexStep(kLlama3)}, Normalizer::kNone, true, true};
  if (name == "dbrx" || name == "smaug-bpe") return Regexes({kLlama3});
  if (name == "qwen2") return NamedPreTokenizer{{SplitRegexStep(kQwen2)}, Normalizer::kNfc, false, false};
  if (name == "qwen35") return NamedPreTokenizer{{SplitRegexStep(kQwen35)}, Normalizer::kNfc, false, false};
  if (name == "deepseek-coder") return DeepSeekCoder();
  if (name == "deepseek-r1-qwen" || name == "stablelm2" || name == "megrez") return Regexes({kQwen2});
  if (name == "tekken") return NamedPreTokenizer{{SplitRegexStep(kTekken)}, Normalizer::kNone, true, true};
  if (name == "falcon") return Falcon();
  if (name == "default") return DefaultPreTokenizer();
  return std::nullopt;
}

absl::Status CheckRegex(const std::string& file, const std::string& regex) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> compiled(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(), PCRE2_UTF | PCRE2_UCP, &code, &offset,
                    nullptr),
      pcre2_code_free);
  if (compiled) return absl::OkStatus();
  PCRE2_UCHAR message[256] = {};
  pcre2_get_error_message(code, message, sizeof message);
  return Malformed(file, "regex ", Quoted(regex), ": ", reinterpret_cast<const char*>(message), " at offset ", offset,
                   ", want a regex that PCRE2 takes");
}

}  // namespace swiftcache::engine::loader
