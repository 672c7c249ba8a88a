// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/hf_text_steps.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "common/base/status_macros.h"
#include "engine/loader/errors.h"
#include "engine/loader/pre_tokenizers.h"

namespace swiftcache::engine::loader {
namespace {

using nlohmann::json;

constexpr char kEscapedSpace[] = "\u2581";

// A part that may be a Sequence as the list of its parts, in order, however they are nested.
absl::Status Flatten(const JsonObject& part, const char* list_key, std::vector<JsonObject>& out) {
  ASSIGN_OR_RETURN(const std::string type, part.RequireString("type"));
  if (type != "Sequence") {
    out.push_back(part);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const json* parts, part.RequireArray(list_key));
  for (size_t i = 0; i < parts->size(); ++i) {
    ASSIGN_OR_RETURN(const JsonObject child,
                     JsonObject::Of((*parts)[i], part.file(), absl::StrCat(part.Path(list_key), "[", i, "]")));
    RETURN_IF_ERROR(Flatten(child, list_key, out));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<JsonObject>> PartsOf(const JsonObject& root, const char* key, const char* list_key) {
  std::vector<JsonObject> parts;
  ASSIGN_OR_RETURN(const std::optional<JsonObject> part, root.Object(key));
  if (part) RETURN_IF_ERROR(Flatten(*part, list_key, parts));
  return parts;
}

absl::Status UnsupportedPart(const JsonObject& part, const char* wanted) {
  const json* type = part.Find("type");
  return Unsupported(part.file(), "key ", part.Path("type"), ": found ", type ? Describe(*type) : "nothing", ", want ",
                     wanted);
}

std::string QuoteForRegex(const std::string& literal) {
  std::string regex;
  for (const char c : literal) {
    if (static_cast<unsigned char>(c) < 0x80 && !absl::ascii_isalnum(static_cast<unsigned char>(c))) regex += '\\';
    regex += c;
  }
  return regex;
}

/// Collects the fields from the parts, which come in the order in which they run.
class StepReader {
 public:
  explicit StepReader(TokenizerSpec& spec) : spec_(spec) {}

  absl::Status Normalize(const JsonObject& part) {
    ASSIGN_OR_RETURN(const std::string type, part.RequireString("type"));
    if (type == "NFC") {
      spec_.normalizer = Normalizer::kNfc;
      return absl::OkStatus();
    }
    if (type == "Prepend") {
      ASSIGN_OR_RETURN(const std::string text, part.RequireString("prepend"));
      if (text != kEscapedSpace) return part.Wrong("prepend", "U+2581");
      spec_.add_space_prefix = true;
      return absl::OkStatus();
    }
    if (type == "Replace") return ReadReplace(part);
    return UnsupportedPart(part, "NFC, Prepend, Replace or a Sequence of these");
  }

  absl::Status PreTokenize(const JsonObject& part) {
    ASSIGN_OR_RETURN(const std::string type, part.RequireString("type"));
    if (byte_level_) return Unsupported(part.file(), "key ", part.Path("type"), ": a step after ByteLevel");
    if (type == "ByteLevel") return ReadByteLevel(part);
    if (type == "Split") return ReadSplit(part);
    if (type == "Digits") return ReadDigits(part);
    if (type == "Metaspace") return ReadMetaspace(part);
    return UnsupportedPart(part, "ByteLevel, Split, Digits, Metaspace or a Sequence of these");
  }

  absl::Status Finish(const JsonObject& root) {
    if (byte_level_ && spec_.escape_whitespaces) {
      return Unsupported(root.file(), "key pre_tokenizer: both ByteLevel and U+2581 for spaces, want one of them");
    }
    if (!byte_level_ && !spec_.escape_whitespaces && !spec_.byte_fallback) {
      return Unsupported(root.file(), "key pre_tokenizer: neither byte-level (ByteLevel) nor SentencePiece-style ",
                         "(Metaspace, or a normalizer that puts U+2581 for spaces)");
    }
    spec_.kind = byte_level_ ? TokenizerKind::kByteLevelBpe : TokenizerKind::kSentencePieceBpe;
    return absl::OkStatus();
  }

 private:
  absl::Status ReadReplace(const JsonObject& part) {
    ASSIGN_OR_RETURN(const JsonObject pattern, part.RequireObject("pattern"));
    ASSIGN_OR_RETURN(const std::optional<std::string> from, pattern.String("String"));
    ASSIGN_OR_RETURN(const std::string to, part.RequireString("content"));
    if (from.value_or("") != " " || to != kEscapedSpace) {
      return Unsupported(part.file(), "key ", part.Path("content"), ": found ", Quoted(to),
                         ", want a Replace of \" \" by U+2581");
    }
    spec_.escape_whitespaces = true;
    return absl::OkStatus();
  }

  absl::Status ReadByteLevel(const JsonObject& part) {
    byte_level_ = true;
    ASSIGN_OR_RETURN(const std::optional<bool> prefix, part.Bool("add_prefix_space"));
    if (prefix.value_or(true)) {
      return Unsupported(part.file(), "key ", part.Path("add_prefix_space"), ": want false");
    }
    ASSIGN_OR_RETURN(const std::optional<bool> use_regex, part.Bool("use_regex"));
    if (use_regex.value_or(true)) spec_.pre_tokenizer.push_back(Gpt2Step());
    return absl::OkStatus();
  }

  absl::Status ReadSplit(const JsonObject& part) {
    ASSIGN_OR_RETURN(const std::string behavior, part.RequireString("behavior"));
    if (behavior != "Isolated") {
      return Unsupported(part.file(), "key ", part.Path("behavior"), ": found ", Quoted(behavior),
                         ", want \"Isolated\"");
    }
    ASSIGN_OR_RETURN(const JsonObject pattern, part.RequireObject("pattern"));
    ASSIGN_OR_RETURN(std::optional<std::string> regex, pattern.String("Regex"));
    if (!regex) {
      ASSIGN_OR_RETURN(const std::string literal, pattern.RequireString("String"));
      regex = QuoteForRegex(literal);
    }
    if (regex->empty()) return part.Wrong("pattern", "a pattern that is not empty");
    RETURN_IF_ERROR(CheckRegex(part.file(), *regex));
    spec_.pre_tokenizer.push_back(SplitRegexStep(*std::move(regex)));
    return absl::OkStatus();
  }

  absl::Status ReadDigits(const JsonObject& part) {
    ASSIGN_OR_RETURN(const bool individual, part.Flag("individual_digits"));
    spec_.pre_tokenizer.push_back(individual ? IndividualDigitsStep() : SplitRegexStep("\\p{N}+"));
    return absl::OkStatus();
  }

  absl::Status ReadMetaspace(const JsonObject& part) {
    ASSIGN_OR_RETURN(const std::string replacement, part.RequireString("replacement"));
    if (replacement != kEscapedSpace) return part.Wrong("replacement", "U+2581");
    ASSIGN_OR_RETURN(const std::optional<bool> split, part.Bool("split"));
    if (split.value_or(true)) spec_.pre_tokenizer.push_back(SplitRegexStep("\u2581[^\u2581]*|[^\u2581]+"));
    spec_.escape_whitespaces = true;
    return ReadPrefix(part);
  }

  absl::Status ReadPrefix(const JsonObject& part) {
    ASSIGN_OR_RETURN(const std::optional<bool> old_form, part.Bool("add_prefix_space"));
    ASSIGN_OR_RETURN(const std::optional<std::string> scheme, part.String("prepend_scheme"));
    const std::string when = scheme.value_or(old_form.value_or(true) ? "always" : "never");
    if (when != "first" && when != "never") {
      // "always" omits the prefix if a text begins with a space, which the spec cannot express.
      return Unsupported(part.file(), "key ", part.Path("prepend_scheme"), ": found ", Quoted(when),
                         ", want \"first\" or \"never\"");
    }
    spec_.add_space_prefix = when == "first";
    spec_.space_prefix_first_only = when == "first";
    return absl::OkStatus();
  }

  TokenizerSpec& spec_;
  bool byte_level_ = false;
};

}  // namespace

absl::Status ReadTextSteps(const JsonObject& root, TokenizerSpec& spec) {
  StepReader reader(spec);
  ASSIGN_OR_RETURN(const std::vector<JsonObject> normalizers, PartsOf(root, "normalizer", "normalizers"));
  for (const JsonObject& part : normalizers) RETURN_IF_ERROR(reader.Normalize(part));
  ASSIGN_OR_RETURN(const std::vector<JsonObject> steps, PartsOf(root, "pre_tokenizer", "pretokenizers"));
  for (const JsonObject& part : steps) RETURN_IF_ERROR(reader.PreTokenize(part));
  return reader.Finish(root);
}

}  // namespace swiftcache::engine::loader
