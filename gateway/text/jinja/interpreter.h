// SPDX-License-Identifier: Apache-2.0
// Runs a template's syntax tree once.
//
//   Interpreter run(context, limits, wall_time);
//   absl::StatusOr<TextPtr> text = run.Render(body);
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gateway/text/jinja/functions.h"
#include "gateway/text/jinja/syntax.h"
#include "gateway/text/jinja/text.h"

namespace swiftcache::gateway::text::jinja {

/// What a rendering gets from outside, by name.
using Context = std::map<std::string, Value, std::less<>>;

/// Variables of one block. shared_ptr: a macro needs to know whether the scope that it was defined in still lives.
struct Scope {
  std::shared_ptr<const Scope> parent;
  std::unordered_map<std::string_view, Value> variables;  // names lie in the syntax tree
};

struct Macro {
  const Statement* definition = nullptr;
  std::weak_ptr<const Scope> scope;
};

/// Thread-safety: none, one per rendering. Ownership: borrows context and tree; owns budget, scopes and namespaces.
/// Errors: INVALID_ARGUMENT (a Python exception would be raised; raise_exception gives its message alone, others the
/// line), UNIMPLEMENTED, RESOURCE_EXHAUSTED (steps, output, memory, depth).
class Interpreter {
 public:
  Interpreter(const Context& context, const Limits& limits, absl::Time wall_time);
  absl::StatusOr<TextPtr> Render(const Block& body);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // execute.cc
  absl::StatusOr<Flow> RunBlock(const Block& block);
  absl::StatusOr<Flow> Run(const Statement& statement);
  absl::StatusOr<Flow> RunFor(const Statement& loop);
  absl::StatusOr<std::shared_ptr<const List>> LoopItems(const Statement& loop);
  absl::StatusOr<Flow> RunIf(const Statement& branch);
  absl::Status RunPrint(const Statement& print);
  absl::Status RunSetBlock(const Statement& set);
  absl::Status RunMacro(const Statement& macro);
  absl::Status RunCallBlock(const Statement& call);
  absl::Status RunFilterBlock(const Statement& filter);
  absl::Status RunWith(const Statement& with);
  /// The output of `body` in a scope of its own, as a string.
  absl::StatusOr<Value> Capture(const Block& body);
  absl::Status Assign(const Target& target, const Value& value);
  absl::Status AssignAttribute(const Target& target, const Value& value);

  // evaluate.cc
  absl::StatusOr<Value> Evaluate(const Expr& expr);
  absl::StatusOr<Value> EvaluateKind(const Expr& expr);
  absl::StatusOr<Value> EvaluateName(const Expr& expr) const;
  absl::StatusOr<Value> EvaluateItem(const Expr& expr);
  absl::StatusOr<Value> EvaluateSlice(const Expr& expr);
  absl::StatusOr<Value> EvaluateUnary(const Expr& expr);
  absl::StatusOr<Value> EvaluateArithmetic(const Expr& expr);
  absl::StatusOr<Value> EvaluateLogic(const Expr& expr);
  absl::StatusOr<Value> EvaluateConcat(const Expr& expr);
  absl::StatusOr<Value> EvaluateCompare(const Expr& expr);
  absl::StatusOr<Value> EvaluateIf(const Expr& expr);
  absl::StatusOr<Value> EvaluateSequence(const Expr& expr, ListKind kind);
  absl::StatusOr<Value> EvaluateDict(const Expr& expr);
  absl::StatusOr<Value> EvaluateTest(const Expr& expr);
  /// Applies a filter or chain of filters; `input` stands where the first one of a filter block has none.
  absl::StatusOr<Value> EvaluateFilter(const Expr& expr, const Value* input);
  absl::StatusOr<Value> EvaluateCall(const Expr& expr, const Value* caller);
  absl::StatusOr<Arguments> EvaluateArguments(const Expr& expr);
  absl::StatusOr<Value> Call(const Value& callee, const Arguments& arguments, const Value* caller);
  absl::StatusOr<Value> CallMacro(const Macro& macro, const Arguments& arguments, const Value* caller);
  absl::Status BindParameters(const Statement& definition, const Arguments& arguments);

  const Context& context_;
  const absl::Time wall_time_;
  Budget budget_;  // before all values, which give their memory back to it
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::shared_ptr<Scope> scope_;
  TextBuilder* out_ = nullptr;
  int line_ = 0;         // of what was evaluated last, for errors
  bool raised_ = false;  // by raise_exception
};

}  // namespace swiftcache::gateway::text::jinja
