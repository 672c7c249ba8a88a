// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a template.
//
//   ASSIGN_OR_RETURN(Block body, Parse(source));
//   for (const auto& statement : body) Run(*statement);
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

enum class Op {
  kNone,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn,
  kNeg,
  kPos,
  kNot,
  kAnd,
  kOr,
};

enum class ExprKind {
  kConst,       // constant
  kName,        // name
  kAttribute,   // children[0].name
  kItem,        // children[0][children[1]]
  kSlice,       // children[0][children[1]:children[2]:children[3]], each of the three may be null
  kCall,        // children[0](children[1..], named...)
  kFilter,      // children[0]|name(children[1..], named...); children[0] is null for the input of a filter block
  kTest,        // children[0] is name(children[1..], named...)
  kUnary,       // op children[0]
  kArithmetic,  // children[0] op children[1]
  kLogic,       // children[0] and|or children[1]
  kConcat,      // children[0] ~ children[1] ~ ...
  kCompare,     // children[0] ops[0] children[1] ops[1] ...
  kIf,          // children[0] if children[1] else children[2], which may be null
  kList,        // [children...]
  kTuple,       // (children...)
  kDict,        // {children[0]: children[1], ...}
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

/// Thread-safety: immutable after the parse. Ownership: owns its children; `depth` bounds the recursion over them.
struct Expr {
  ExprKind kind = ExprKind::kConst;
  Op op = Op::kNone;
  int line = 0;
  int depth = 1;
  std::string name;
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<Op> ops;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

enum class StatementKind {
  kText,       // name: literal text
  kPrint,      // {{ expr }}
  kFor,        // for target in expr if condition: body, otherwise
  kIf,         // if expr: body, otherwise (an elif is an if in otherwise)
  kSet,        // set target = expr
  kSetBlock,   // set target (| expr, a filter): body
  kMacro,      // macro name(parameters): body
  kCallBlock,  // call(parameters) expr: body
  kFilter,     // filter expr: body
  kWith,       // with targets[i] = values[i]: body
  kScope,      // generation: body
  kBreak,
  kContinue,
};

/// `x`, `ns.x` or `a, b`.
struct Target {
  std::string name;       // empty for a tuple
  std::string attribute;  // of the namespace `name`, or empty
  std::vector<Target> items;
};

struct Parameter {
  std::string name;
  ExprPtr standard;  // the value where none is given, or null
};

/// Thread-safety: immutable after the parse. Ownership: owns what is below.
struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string name;
  Target target;
  ExprPtr expr, condition;
  Block body, otherwise;
  std::vector<Parameter> parameters;
  std::vector<std::pair<Target, ExprPtr>> bindings;
  bool uses_caller = false;  // of a macro
};

}  // namespace swiftcache::gateway::text::jinja
