// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/expression_parser.h"
#include "gateway/text/jinja/functions.h"
#include "gateway/text/jinja/token_stream.h"

namespace swiftcache::gateway::text::jinja {
namespace {

constexpr int64_t kMaxSourceBytes = 1 << 20;

using Names = std::initializer_list<std::string_view>;
using StatementPtr = std::unique_ptr<Statement>;

/// Tags that end or divide a statement: alone they are a mistake in the template, not something unknown.
constexpr std::string_view kInnerTags[] = {"elif",    "else",      "endif",   "endfor",        "endset", "endmacro",
                                           "endcall", "endfilter", "endwith", "endgeneration", "endraw"};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : stream_(std::move(tokens)), expressions_(stream_) {}

  absl::StatusOr<Block> Run() {
    ASSIGN_OR_RETURN(Block body, ParseBody({}));
    RETURN_IF_ERROR(CheckCalls());
    return body;
  }

 private:
  using TagParser = absl::Status (Parser::*)(Statement&);

  StatementPtr New(StatementKind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = stream_.line();
    return statement;
  }

  absl::Status CheckCalls() {
    std::set<std::string> bound(expressions_.bound().begin(), expressions_.bound().end());
    for (const auto& [name, line] : expressions_.called()) {
      if (bound.contains(name) || FindFunction(name) != nullptr || name == "caller") continue;
      return NotSupported(line, absl::StrCat("the function '", name, "' is not supported"));
    }
    return absl::OkStatus();
  }

  bool AtTag(Names names) const {
    return stream_.Is(TokenKind::kBlockBegin) && stream_.ahead().kind == TokenKind::kName &&
           std::find(names.begin(), names.end(), stream_.ahead().text) != names.end();
  }

  /// Statements up to one of the tags `ends`, which is left; up to the end of the template where there are none.
  absl::StatusOr<Block> ParseBody(Names ends) {
    absl::Status entered = expressions_.Enter();
    absl::StatusOr<Block> body = entered.ok() ? ParseBodyInside(ends) : absl::StatusOr<Block>(entered);
    expressions_.Leave();
    return body;
  }

  absl::StatusOr<Block> ParseBodyInside(Names ends) {
    Block body;
    while (!AtTag(ends)) {
      if (stream_.Is(TokenKind::kEnd)) {
        if (ends.size() == 0) return body;
        return stream_.Unexpected(absl::StrCat("{% ", std::string(*(ends.end() - 1)), " %}"));
      }
      ASSIGN_OR_RETURN(StatementPtr statement, ParseStatement());
      body.push_back(std::move(statement));
    }
    return body;
  }

  absl::StatusOr<StatementPtr> ParseStatement() {
    if (stream_.Is(TokenKind::kText)) {
      auto text = New(StatementKind::kText);
      text->name = stream_.current().text;
      stream_.Next();
      return text;
    }
    if (!stream_.Is(TokenKind::kPrintBegin)) return ParseTag();
    auto print = New(StatementKind::kPrint);
    stream_.Next();
    ASSIGN_OR_RETURN(print->expr, expressions_.ParseTuple());
    RETURN_IF_ERROR(stream_.Expect(TokenKind::kPrintEnd, "}}"));
    return print;
  }

  absl::StatusOr<StatementPtr> ParseTag() {
    static constexpr struct {
      std::string_view name;
      StatementKind kind;
      TagParser parse;
    } kTags[] = {{"for", StatementKind::kFor, &Parser::ParseFor},
                 {"if", StatementKind::kIf, &Parser::ParseIf},
                 {"set", StatementKind::kSet, &Parser::ParseSet},
                 {"macro", StatementKind::kMacro, &Parser::ParseMacro},
                 {"call", StatementKind::kCallBlock, &Parser::ParseCallBlock},
                 {"filter", StatementKind::kFilter, &Parser::ParseFilterBlock},
                 {"with", StatementKind::kWith, &Parser::ParseWith},
                 {"generation", StatementKind::kScope, &Parser::ParseGeneration},
                 {"break", StatementKind::kBreak, &Parser::ParseJump},
                 {"continue", StatementKind::kContinue, &Parser::ParseJump}};
    stream_.Next();
    std::string name = stream_.current().text;
    if (!stream_.Is(TokenKind::kName)) return stream_.Unexpected("a tag's name");
    for (const auto& tag : kTags) {
      if (tag.name != name) continue;
      auto statement = New(tag.kind);
      stream_.Next();
      RETURN_IF_ERROR((this->*tag.parse)(*statement));
      RETURN_IF_ERROR(EndTag());
      return statement;
    }
    if (std::find(std::begin(kInnerTags), std::end(kInnerTags), name) != std::end(kInnerTags)) {
      return stream_.Error(absl::StrCat("the tag '", name, "' has no statement that it belongs to"));
    }
    return NotSupported(stream_.line(), absl::StrCat("the tag '", name, "' is not supported"));
  }

  absl::Status EndTag() { return stream_.Expect(TokenKind::kBlockEnd, "%}"); }

  /// The body of a statement and its end tag's name; the caller's EndTag takes the rest of it.
  absl::Status ParseBodyTo(Block& body, Names ends) {
    RETURN_IF_ERROR(EndTag());
    ASSIGN_OR_RETURN(body, ParseBody(ends));
    stream_.Next();
    return absl::OkStatus();
  }

  /// A body that `break` cannot leave.
  absl::Status ParseClosedBody(Block& body, std::string_view end) {
    int loops = std::exchange(loops_, 0);
    RETURN_IF_ERROR(ParseBodyTo(body, {end}));
    loops_ = loops;
    stream_.Next();
    return absl::OkStatus();
  }

  absl::Status ParseFor(Statement& loop) {
    ASSIGN_OR_RETURN(loop.target, expressions_.ParseTarget(/*with_attribute=*/false));
    if (!stream_.SkipName("in")) return stream_.Unexpected("in");
    ASSIGN_OR_RETURN(loop.expr, expressions_.ParseTuple({.with_condition = false, .end_name = "recursive"}));
    if (stream_.SkipName("if")) {
      ASSIGN_OR_RETURN(loop.condition, expressions_.ParseExpression());
    }
    if (stream_.IsName("recursive")) return NotSupported(loop.line, "a recursive loop is not supported");
    ++loops_;
    RETURN_IF_ERROR(ParseBodyTo(loop.body, {"else", "endfor"}));
    --loops_;
    if (stream_.SkipName("else")) RETURN_IF_ERROR(ParseBodyTo(loop.otherwise, {"endfor"}));
    stream_.Next();
    return absl::OkStatus();
  }

  /// Each elif becomes an if of its own in `otherwise` of the one before.
  absl::Status ParseIf(Statement& first) {
    Statement* branch = &first;
    for (int depth = 0;; ++depth) {
      if (depth > kMaxElifs) return stream_.Error(absl::StrCat("more than ", kMaxElifs, " elif"));
      ASSIGN_OR_RETURN(branch->expr, expressions_.ParseTuple({.with_condition = false}));
      RETURN_IF_ERROR(ParseBodyTo(branch->body, {"elif", "else", "endif"}));
      if (!stream_.IsName("elif")) break;
      branch->otherwise.push_back(New(StatementKind::kIf));
      branch = branch->otherwise.back().get();
      stream_.Next();
    }
    if (stream_.SkipName("else")) RETURN_IF_ERROR(ParseBodyTo(branch->otherwise, {"endif"}));
    stream_.Next();
    return absl::OkStatus();
  }

  absl::Status ParseSet(Statement& set) {
    ASSIGN_OR_RETURN(set.target, expressions_.ParseTarget(/*with_attribute=*/true));
    if (stream_.SkipOperator("=")) {
      ASSIGN_OR_RETURN(set.expr, expressions_.ParseTuple());
      return absl::OkStatus();
    }
    set.kind = StatementKind::kSetBlock;
    if (stream_.SkipOperator("|")) {
      ASSIGN_OR_RETURN(set.expr, expressions_.ParseFilterChain());
    }
    return ParseClosedBody(set.body, "endset");
  }

  absl::Status ParseParameters(Statement& macro) {
    RETURN_IF_ERROR(stream_.ExpectOperator("("));
    while (!stream_.IsOperator(")")) {
      if (!macro.parameters.empty()) RETURN_IF_ERROR(stream_.ExpectOperator(","));
      Parameter parameter;
      parameter.name = stream_.current().text;
      RETURN_IF_ERROR(stream_.Expect(TokenKind::kName, "a parameter's name"));
      expressions_.bound().push_back(parameter.name);
      if (stream_.SkipOperator("=")) {
        ASSIGN_OR_RETURN(parameter.standard, expressions_.ParseExpression());
      } else if (!macro.parameters.empty() && macro.parameters.back().standard != nullptr) {
        return stream_.Error("a parameter without a default behind one with a default");
      }
      macro.parameters.push_back(std::move(parameter));
    }
    stream_.Next();
    return absl::OkStatus();
  }

  absl::Status ParseMacroBody(Statement& macro, std::string_view end) {
    size_t first = expressions_.read().size();
    RETURN_IF_ERROR(ParseClosedBody(macro.body, end));
    auto names = expressions_.read().begin() + static_cast<int64_t>(first);
    for (; names != expressions_.read().end(); ++names) {
      if (*names == "varargs" || *names == "kwargs") {
        return NotSupported(macro.line, absl::StrCat("'", *names, "' in a macro is not supported"));
      }
      macro.uses_caller |= *names == "caller";
    }
    return absl::OkStatus();
  }

  absl::Status ParseMacro(Statement& macro) {
    macro.name = stream_.current().text;
    RETURN_IF_ERROR(stream_.Expect(TokenKind::kName, "a macro's name"));
    expressions_.bound().push_back(macro.name);
    RETURN_IF_ERROR(ParseParameters(macro));
    return ParseMacroBody(macro, "endmacro");
  }

  absl::Status ParseCallBlock(Statement& call) {
    call.name = "caller";
    if (stream_.IsOperator("(")) RETURN_IF_ERROR(ParseParameters(call));
    ASSIGN_OR_RETURN(call.expr, expressions_.ParseExpression());
    if (call.expr->kind != ExprKind::kCall) return stream_.Error("a call block wants a call");
    return ParseMacroBody(call, "endcall");
  }

  absl::Status ParseFilterBlock(Statement& filter) {
    ASSIGN_OR_RETURN(filter.expr, expressions_.ParseFilterChain());
    return ParseClosedBody(filter.body, "endfilter");
  }

  absl::Status ParseWith(Statement& with) {
    while (!stream_.Is(TokenKind::kBlockEnd)) {
      if (!with.bindings.empty()) RETURN_IF_ERROR(stream_.ExpectOperator(","));
      ASSIGN_OR_RETURN(Target target, expressions_.ParseTarget(/*with_attribute=*/false));
      RETURN_IF_ERROR(stream_.ExpectOperator("="));
      ASSIGN_OR_RETURN(ExprPtr value, expressions_.ParseExpression());
      with.bindings.emplace_back(std::move(target), std::move(value));
    }
    RETURN_IF_ERROR(ParseBodyTo(with.body, {"endwith"}));
    stream_.Next();
    return absl::OkStatus();
  }

  absl::Status ParseGeneration(Statement& generation) { return ParseClosedBody(generation.body, "endgeneration"); }

  absl::Status ParseJump(Statement& jump) {
    if (loops_ > 0) return absl::OkStatus();
    return stream_.Error(jump.kind == StatementKind::kBreak ? "'break' outside of a loop"
                                                            : "'continue' outside of a loop");
  }

  static constexpr int kMaxElifs = 100;

  TokenStream stream_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

absl::StatusOr<Block> Parse(std::string_view source) {
  if (static_cast<int64_t>(source.size()) > kMaxSourceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the chat template has ", source.size(), " bytes, at most ", kMaxSourceBytes, " are allowed"));
  }
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Lex(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace swiftcache::gateway::text::jinja
