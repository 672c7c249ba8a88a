// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>

#include "common/base/status_macros.h"
#include "engine/loader/errors.h"
#include "engine/loader/hf_text_steps.h"

namespace swiftcache::engine::loader {
namespace {

using nlohmann::json;

// The one id that a special token of the template stands for.
absl::StatusOr<int32_t> TemplateId(const JsonObject& processor, const JsonObject& special, const TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const std::string name, special.RequireString("id"));
  ASSIGN_OR_RETURN(const JsonObject tokens, processor.RequireObject("special_tokens"));
  ASSIGN_OR_RETURN(const JsonObject token, tokens.RequireObject(name));
  ASSIGN_OR_RETURN(const json* ids, token.RequireArray("ids"));
  const std::optional<int64_t> id =
      ids->size() == 1 ? ToInt(ids->front(), 0, static_cast<int64_t>(spec.tokens.size()) - 1) : std::nullopt;
  if (!id) return token.Wrong("ids", absl::StrCat("one id from 0 to ", spec.tokens.size() - 1));
  return static_cast<int32_t>(*id);
}

// A template of at most one token, the text, at most one token.
absl::Status ReadTemplate(const JsonObject& processor, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const json* pieces, processor.RequireArray("single"));
  bool text_seen = false;
  for (size_t i = 0; i < pieces->size(); ++i) {
    ASSIGN_OR_RETURN(const JsonObject piece, JsonObject::Of((*pieces)[i], processor.file(),
                                                            absl::StrCat(processor.Path("single"), "[", i, "]")));
    ASSIGN_OR_RETURN(const std::optional<JsonObject> special, piece.Object("SpecialToken"));
    if (!special) {
      if (piece.Find("Sequence") == nullptr || text_seen) return processor.Wrong("single", "one Sequence");
      text_seen = true;
      continue;
    }
    bool& add = text_seen ? spec.add_eos : spec.add_bos;
    if (add) return Unsupported(processor.file(), "key ", processor.Path("single"), ": more than one token on a side");
    add = true;
    ASSIGN_OR_RETURN((text_seen ? spec.eos_id : spec.bos_id), TemplateId(processor, *special, spec));
  }
  return text_seen ? absl::OkStatus() : processor.Wrong("single", "one Sequence");
}

absl::Status ReadProcessor(const JsonObject& processor, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const std::string type, processor.RequireString("type"));
  if (type == "ByteLevel") return absl::OkStatus();  // moves offsets only
  if (type == "TemplateProcessing") return ReadTemplate(processor, spec);
  if (type != "Sequence") {
    return Unsupported(processor.file(), "key ", processor.Path("type"), ": found ", Quoted(type),
                       ", want TemplateProcessing, ByteLevel or a Sequence of these");
  }
  ASSIGN_OR_RETURN(const json* parts, processor.RequireArray("processors"));
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string path = absl::StrCat(processor.Path("processors"), "[", i, "]");
    ASSIGN_OR_RETURN(const JsonObject part, JsonObject::Of((*parts)[i], processor.file(), path));
    RETURN_IF_ERROR(ReadProcessor(part, spec));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadPostProcessor(const JsonObject& root, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const std::optional<JsonObject> processor, root.Object("post_processor"));
  return processor ? ReadProcessor(*processor, spec) : absl::OkStatus();
}

}  // namespace swiftcache::engine::loader
