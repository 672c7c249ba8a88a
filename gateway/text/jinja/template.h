// SPDX-License-Identifier: Apache-2.0
// A compiled template of Jinja's language as chat templates use it: rendered as transformers renders it, in a sandbox.
//
//   ASSIGN_OR_RETURN(auto greeting, Template::Compile("Hello {{ name | trim }}!"));
//   const Context context = {{"name", Value::String(FreeText(" you ", /*marked=*/true))}};
//   ASSIGN_OR_RETURN(Rendered out, greeting->Render(context, {}, WallTimeNow()));
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gateway/text/jinja/interpreter.h"
#include "gateway/text/jinja/syntax.h"

namespace swiftcache::gateway::text::jinja {

struct Rendered {
  std::string text;
  std::vector<Mark> marks;  // what of it came out of marked inputs
};

/// Thread-safety: immutable after Compile. Ownership: owns the syntax tree.
/// Errors: Compile: as Parse (parser.h). Render: as Interpreter (interpreter.h).
class Template {
 public:
  static absl::StatusOr<std::unique_ptr<Template>> Compile(std::string_view source);
  /// `wall_time`: what strftime_now shows.
  absl::StatusOr<Rendered> Render(const Context& context, const Limits& limits, absl::Time wall_time) const;

 private:
  explicit Template(Block body) : body_(std::move(body)) {}

  const Block body_;
};

}  // namespace swiftcache::gateway::text::jinja
