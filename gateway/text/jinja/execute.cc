// SPDX-License-Identifier: Apache-2.0
// Statements.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/access.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/interpreter.h"
#include "gateway/text/jinja/print.h"

namespace swiftcache::gateway::text::jinja {
namespace {

/// Puts a new scope in the place of the current one while it lives.
class ScopeGuard {
 public:
  ScopeGuard(std::shared_ptr<Scope>& current, std::shared_ptr<const Scope> parent)
      : current_(current), saved_(std::exchange(current, std::make_shared<Scope>())) {
    current_->parent = std::move(parent);
  }
  explicit ScopeGuard(std::shared_ptr<Scope>& current) : ScopeGuard(current, current) {}
  ScopeGuard(const ScopeGuard&) = delete;
  ~ScopeGuard() { current_ = std::move(saved_); }

 private:
  std::shared_ptr<Scope>& current_;
  std::shared_ptr<Scope> saved_;
};

}  // namespace

Interpreter::Interpreter(const Context& context, const Limits& limits, absl::Time wall_time)
    : context_(context), wall_time_(wall_time), budget_(limits), scope_(std::make_shared<Scope>()) {}

absl::StatusOr<TextPtr> Interpreter::Render(const Block& body) {
  TextBuilder out(budget_, budget_.limits().max_output_bytes);
  out_ = &out;
  absl::Status status = RunBlock(body).status();
  if (status.ok()) return out.Finish();
  if (raised_) return status;
  return absl::Status(status.code(), absl::StrCat("chat template, line ", line_, ": ", status.message()));
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunBlock(const Block& block) {
  DepthGuard depth(budget_);
  RETURN_IF_ERROR(depth.status());
  for (const auto& statement : block) {
    ASSIGN_OR_RETURN(Flow flow, Run(*statement));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Run(const Statement& statement) {
  RETURN_IF_ERROR(budget_.Spend(1));
  line_ = statement.line;
  absl::Status status;
  switch (statement.kind) {
    case StatementKind::kFor:
      return RunFor(statement);
    case StatementKind::kIf:
      return RunIf(statement);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
    case StatementKind::kWith: {
      ScopeGuard inner(scope_);
      RETURN_IF_ERROR(RunWith(statement));
      return RunBlock(statement.body);
    }
    case StatementKind::kScope: {
      ScopeGuard inner(scope_);
      return RunBlock(statement.body);
    }
    case StatementKind::kText:
      out_->Append(statement.name);
      status = out_->status();
      break;
    case StatementKind::kPrint:
      status = RunPrint(statement);
      break;
    case StatementKind::kSet: {
      ASSIGN_OR_RETURN(Value value, Evaluate(*statement.expr));
      status = Assign(statement.target, value);
      break;
    }
    case StatementKind::kSetBlock:
      status = RunSetBlock(statement);
      break;
    case StatementKind::kMacro:
      status = RunMacro(statement);
      break;
    case StatementKind::kCallBlock:
      status = RunCallBlock(statement);
      break;
    case StatementKind::kFilter:
      status = RunFilterBlock(statement);
      break;
  }
  if (!status.ok()) return status;
  return Flow::kNext;
}

absl::Status Interpreter::RunPrint(const Statement& print) {
  ASSIGN_OR_RETURN(Value value, Evaluate(*print.expr));
  return AppendStr(value, *out_);
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunIf(const Statement& branch) {
  ASSIGN_OR_RETURN(Value condition, Evaluate(*branch.expr));
  return RunBlock(IsTruthy(condition) ? branch.body : branch.otherwise);
}

absl::StatusOr<std::shared_ptr<const List>> Interpreter::LoopItems(const Statement& loop) {
  ASSIGN_OR_RETURN(Value iterable, Evaluate(*loop.expr));
  ASSIGN_OR_RETURN(auto items, Iterate(budget_, iterable));
  if (loop.condition == nullptr) return items;
  ListBuilder kept(budget_);
  for (const Value& item : items->items) {
    ScopeGuard inner(scope_);
    RETURN_IF_ERROR(Assign(loop.target, item));
    ASSIGN_OR_RETURN(Value condition, Evaluate(*loop.condition));
    if (IsTruthy(condition) && !kept.Add(item)) break;
  }
  ASSIGN_OR_RETURN(Value list, kept.Finish());
  return std::get<std::shared_ptr<const List>>(list.rep());
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunFor(const Statement& loop) {
  ASSIGN_OR_RETURN(auto items, LoopItems(loop));
  for (size_t i = 0; i < items->items.size(); ++i) {
    RETURN_IF_ERROR(budget_.Spend(1));
    ScopeGuard inner(scope_);
    scope_->variables["loop"] = Value(std::make_shared<const Loop>(Loop{items, static_cast<int64_t>(i)}));
    RETURN_IF_ERROR(Assign(loop.target, items->items[i]));
    ASSIGN_OR_RETURN(Flow flow, RunBlock(loop.body));
    if (flow == Flow::kBreak) return Flow::kNext;
  }
  if (!items->items.empty()) return Flow::kNext;
  ScopeGuard inner(scope_);
  return RunBlock(loop.otherwise);
}

absl::StatusOr<Value> Interpreter::Capture(const Block& body) {
  ScopeGuard inner(scope_);
  TextBuilder out(budget_);
  TextBuilder* saved = std::exchange(out_, &out);
  absl::Status status = RunBlock(body).status();
  out_ = saved;
  RETURN_IF_ERROR(status);
  return FinishString(out);
}

absl::Status Interpreter::RunSetBlock(const Statement& set) {
  ASSIGN_OR_RETURN(Value value, Capture(set.body));
  if (set.expr != nullptr) {
    ASSIGN_OR_RETURN(value, EvaluateFilter(*set.expr, &value));
  }
  return Assign(set.target, value);
}

absl::Status Interpreter::RunFilterBlock(const Statement& filter) {
  ASSIGN_OR_RETURN(Value text, Capture(filter.body));
  ASSIGN_OR_RETURN(Value filtered, EvaluateFilter(*filter.expr, &text));
  return AppendStr(filtered, *out_);
}

absl::Status Interpreter::RunMacro(const Statement& macro) {
  scope_->variables[macro.name] = Value(std::make_shared<const Macro>(Macro{&macro, scope_}));
  return absl::OkStatus();
}

absl::Status Interpreter::RunCallBlock(const Statement& call) {
  Value caller(std::make_shared<const Macro>(Macro{&call, scope_}));
  ASSIGN_OR_RETURN(Value value, EvaluateCall(*call.expr, &caller));
  return AppendStr(value, *out_);
}

/// The values see the scope around, not each other.
absl::Status Interpreter::RunWith(const Statement& with) {
  for (const auto& [target, expr] : with.bindings) {
    std::shared_ptr<Scope> inner = scope_;
    scope_ = std::make_shared<Scope>();
    scope_->parent = inner->parent;
    absl::StatusOr<Value> value = Evaluate(*expr);
    scope_ = std::move(inner);
    RETURN_IF_ERROR(value.status());
    RETURN_IF_ERROR(Assign(target, *value));
  }
  return absl::OkStatus();
}

absl::Status Interpreter::AssignAttribute(const Target& target, const Value& value) {
  Expr name;
  name.name = target.name;
  ASSIGN_OR_RETURN(Value space, EvaluateName(name));
  auto* place = std::get_if<Namespace*>(&space.rep());
  if (place == nullptr) return absl::InvalidArgumentError("cannot assign attribute on non-namespace object");
  (*place)->attributes.insert_or_assign(target.attribute, value);
  return absl::OkStatus();
}

absl::Status Interpreter::Assign(const Target& target, const Value& value) {
  if (!target.attribute.empty()) return AssignAttribute(target, value);
  if (target.items.empty()) {
    scope_->variables[target.name] = value;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(auto items, Iterate(budget_, value));
  if (items->items.size() != target.items.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot unpack: ", target.items.size(), " values wanted, ", items->items.size(), " found"));
  }
  for (size_t i = 0; i < target.items.size(); ++i) RETURN_IF_ERROR(Assign(target.items[i], items->items[i]));
  return absl::OkStatus();
}

absl::StatusOr<Value> Interpreter::CallMacro(const Macro& macro, const Arguments& arguments, const Value* caller) {
  const Statement& definition = *macro.definition;
  std::shared_ptr<const Scope> parent = macro.scope.lock();
  if (parent == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("macro '", definition.name, "' is called after the block that defined it ended"));
  }
  if (caller != nullptr && !definition.uses_caller) {
    return absl::InvalidArgumentError(absl::StrCat("macro '", definition.name, "' takes no caller"));
  }
  ScopeGuard inner(scope_, std::move(parent));
  if (definition.uses_caller && definition.kind == StatementKind::kMacro) {
    scope_->variables["caller"] = caller != nullptr ? *caller : Value::Missing("No caller defined");
  }
  RETURN_IF_ERROR(BindParameters(definition, arguments));
  return Capture(definition.body);
}

absl::Status Interpreter::BindParameters(const Statement& definition, const Arguments& arguments) {
  const auto& parameters = definition.parameters;
  if (arguments.positional.size() > parameters.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("macro '", definition.name, "' takes not more than ", parameters.size(), " argument(s)"));
  }
  std::vector<std::optional<Value>> given(parameters.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) given[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    size_t i = 0;
    while (i < parameters.size() && parameters[i].name != name) ++i;
    if (i == parameters.size() || given[i]) {
      return absl::InvalidArgumentError(absl::StrCat("macro '", definition.name, "': the argument '", name,
                                                     i == parameters.size() ? "' is unknown" : "' is given twice"));
    }
    given[i] = value;
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    Value value =
        given[i].value_or(Value::Missing(absl::StrCat("parameter '", parameters[i].name, "' was not provided")));
    if (!given[i] && parameters[i].standard != nullptr) {
      ASSIGN_OR_RETURN(value, Evaluate(*parameters[i].standard));
    }
    scope_->variables[parameters[i].name] = std::move(value);
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::gateway::text::jinja
