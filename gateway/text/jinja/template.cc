// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/template.h"

#include <utility>

#include "common/base/status_macros.h"
#include "gateway/text/jinja/parser.h"

namespace swiftcache::gateway::text::jinja {

absl::StatusOr<std::unique_ptr<Template>> Template::Compile(std::string_view source) {
  ASSIGN_OR_RETURN(Block body, Parse(source));
  return std::unique_ptr<Template>(new Template(std::move(body)));
}

absl::StatusOr<Rendered> Template::Render(const Context& context, const Limits& limits, absl::Time wall_time) const {
  Interpreter run(context, limits, wall_time);
  ASSIGN_OR_RETURN(TextPtr text, run.Render(body_));
  return Rendered{text->bytes, text->marks};
}

}  // namespace swiftcache::gateway::text::jinja
