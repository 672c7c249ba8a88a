// SPDX-License-Identifier: Apache-2.0
// What a template may not do: errors at compile time and the limits of the sandbox.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "absl/time/clock.h"
#include "tests/gateway/text/jinja/template_cases.h"

namespace swiftcache::gateway::text {
namespace {

using ::testing::HasSubstr;

absl::Status CompileError(const std::string& source) { return Compile(source).status(); }

absl::Status RenderError(const std::string& source) {
  auto chat = Compile(source);
  EXPECT_TRUE(chat.ok()) << source << ": " << chat.status();
  return chat.ok() ? (*chat)->Render({{"user", "hello"}}, true, {}).status() : chat.status();
}

void ExpectStatus(const absl::Status& status, absl::StatusCode code, const std::string& words) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

std::string Repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(JinjaErrorsTest, SyntaxErrorsNameLineAndColumn) {
  ExpectStatus(CompileError("a\n{{ m['x'] }"), absl::StatusCode::kInvalidArgument, "line 2, column ");
  for (const char* source : {"{% if x %}",
                             "{% for x %}{% endfor %}",
                             "{{ 1 + }}",
                             "{{ (1 }}",
                             "{{ 'a }}",
                             "{% endif %}",
                             "{# x",
                             "{% set 1 = 2 %}",
                             "{{ a b }}",
                             "{% break %}",
                             "{% raw %}",
                             "{{ ] }}",
                             "{{ 99999999999999999999 }}",
                             "{{ '\\ud800' }}",
                             "{{ f(a=1, 2) }}",
                             "{%",
                             "{{",
                             "{% for x in y %}{% else %}",
                             "{{ 01 }}",
                             "{{ $ }}",
                             "{{ }}",
                             "{% set true = 1 %}",
                             "{% macro f(a=1, b) %}{% endmacro %}"}) {
    EXPECT_EQ(CompileError(source).code(), absl::StatusCode::kInvalidArgument)
        << source << ": " << CompileError(source);
    EXPECT_THAT(std::string(CompileError(source).message()), HasSubstr("line 1, column ")) << source;
  }
}

TEST(JinjaErrorsTest, WhatIsNotSupportedIsNamedWhenTheTemplateIsCompiled) {
  ExpectStatus(CompileError("\n\n{{ x | from_json }}"), absl::StatusCode::kUnimplemented,
               "line 3: the filter 'from_json'");
  ExpectStatus(CompileError("{{ x is wonderful }}"), absl::StatusCode::kUnimplemented, "line 1: the test 'wonderful'");
  ExpectStatus(CompileError("{{ open('x') }}"), absl::StatusCode::kUnimplemented, "the function 'open'");
  ExpectStatus(CompileError("{{ x.explode() }}"), absl::StatusCode::kUnimplemented, "the method 'explode'");
  ExpectStatus(CompileError("{% include 'x' %}"), absl::StatusCode::kUnimplemented, "the tag 'include'");
  ExpectStatus(CompileError("{{ [1]|map('nope') }}"), absl::StatusCode::kUnimplemented, "the filter 'nope'");
  ExpectStatus(CompileError("{{ [1]|select('nope') }}"), absl::StatusCode::kUnimplemented, "the test 'nope'");
  ExpectStatus(CompileError("{{ dict(*x) }}"), absl::StatusCode::kUnimplemented, "*");
  ExpectStatus(CompileError("{% for x in y recursive %}{% endfor %}"), absl::StatusCode::kUnimplemented, "recursive");
}

TEST(JinjaErrorsTest, AnExceptionOfTheTemplateIsItsMessageAlone) {
  absl::Status status = RenderError("\n{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(status, absl::InvalidArgumentError("roles must alternate"));
}

TEST(JinjaErrorsTest, AnErrorWhileRenderingNamesTheLine) {
  ExpectStatus(RenderError("\n\n{{ nothing.at_all }}"), absl::StatusCode::kInvalidArgument,
               "line 3: 'nothing' is undefined");
}

TEST(JinjaErrorsTest, EveryWayToUseTooMuchEndsInAClearError) {
  const std::vector<std::string> sources = {
      "{% for i in range(1000000000000) %}{{ i }}{% endfor %}",
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "{{ 'a' * 1000000000000 }}",
      "{{ [1] * 1000000000000 }}",
      "{% set ns = namespace(s='abcdefgh') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(90) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
      "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(90) %}{% set ns.s = [ns.s, ns.s] %}"
      "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
      "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
      "{% set s = 'x' * 60000000 %}{{ s }}{{ s }}",
      "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
      "{{ ('a' * 100000000).split('a') }}",
      "{{ ('a\n' * 1000000)|indent(1000000000) }}",
      "{{ ('a' * 10000000)|list }}",
      "{% for i in range(99999) %}{{ ('a' * 9999)|upper|length }}{% endfor %}",
  };
  for (const std::string& source : sources) {
    const std::clock_t start = std::clock();  // of the processor: others may want it too
    EXPECT_EQ(RenderError(source).code(), absl::StatusCode::kResourceExhausted)
        << source << ": " << RenderError(source);
    EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 60) << source;
  }
}

TEST(JinjaErrorsTest, DeepNestingIsAnErrorAndNotAStackOverflow) {
  for (const char* part :
       {"(", "[", "{{'a':", "not ", "-", "a.b(", "x if y else ", "{% if 1 %}", "{% for a in b %}", "1|default("}) {
    std::string deep = Repeat(part, 50000);
    std::string source = part[0] == '{' && part[1] == '%' ? deep : "{{ " + deep;
    EXPECT_EQ(CompileError(source).code(), absl::StatusCode::kInvalidArgument) << part;
  }
  for (const char* part : {" + 1", ".a", "[0]", "|trim", " is defined", " and 1", " ~ 1 * 2 ** 3 + 1"}) {
    EXPECT_EQ(CompileError("{{ 1" + Repeat(part, 50000) + " }}").code(), absl::StatusCode::kInvalidArgument) << part;
  }
}

TEST(JinjaErrorsTest, ANamespaceThatHoldsItselfDoesNoHarm) {
  auto chat =
      Compile("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.list = [ns] %}{{ ns.me.me.list|length }}");
  ASSERT_TRUE(chat.ok());
  auto text = (*chat)->Render({}, false, {});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "1");
}

absl::StatusCode CodeUnder(const std::string& source, int64_t max_steps, int64_t max_output_bytes) {
  ChatTemplate::Options options;
  options.max_steps = max_steps;
  options.max_output_bytes = max_output_bytes;
  auto chat = ChatTemplate::Create(source, options);
  EXPECT_TRUE(chat.ok()) << chat.status();
  return (*chat)->Render({}, false, {}).status().code();
}

TEST(JinjaErrorsTest, TheLimitsAreTheOptions) {
  EXPECT_EQ(CodeUnder("{{ 'x' * 100 }}", 1000, 99), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeUnder("{{ 'x' * 100 }}", 1000, 100), absl::StatusCode::kOk);
  EXPECT_EQ(CodeUnder("{% for i in range(10) %}{% endfor %}", 10, 100), absl::StatusCode::kResourceExhausted);
}

// Two names for one tuple in a tuple, ninety times: 90 tuples in memory, 2^90 for who follows every name.
TEST(JinjaErrorsTest, WhoFollowsSharedValuesPaysForEachPath) {
  const std::string tuple =
      "{% set ns = namespace(t=(), u=()) %}{% for i in range(90) %}{% set ns.t = (ns.t, ns.t) %}"
      "{% set ns.u = (ns.u, ns.u) %}{% endfor %}";
  for (const char* use :
       {"{{ ns.t in {} }}", "{{ {}[ns.t] }}", "{{ {ns.t: 1} }}", "{{ {}.get(ns.t) }}", "{{ [ns.t]|unique|list }}",
        "{{ ns.t == ns.u }}", "{{ ns.t < ns.u }}", "{{ [ns.t, ns.u]|sort }}", "{{ [ns.t, ns.u]|max }}",
        "{{ ns.t in [ns.u] }}", "{{ ns.t|string|length }}", "{{ ns.t|tojson|length }}", "{{ (ns.t ~ '')|length }}"}) {
    const absl::Time start = absl::Now();
    ExpectStatus(RenderError(tuple + use), absl::StatusCode::kResourceExhausted, "the template");
    EXPECT_LT(absl::Now() - start, absl::Seconds(60)) << use;
  }
}

TEST(JinjaErrorsTest, TextThatIsReadInSmallPiecesOrComparedIsPaidFor) {
  const std::string s = "{% set s = 'x' * 1000000 %}";  // 3906 steps, as is every reading of it
  for (const char* use : {"{{ s.startswith(s) }}", "{{ s.endswith(('y', s)) }}", "{{ s.removeprefix(s) }}",
                          "{{ s|upper|length }}", "{{ s|tojson|length }}", "{{ namespace()[s] }}"}) {
    EXPECT_EQ(CodeUnder(s + use, 7000, 100), absl::StatusCode::kResourceExhausted) << use;
    EXPECT_EQ(CodeUnder(s + use, 20000, 100), absl::StatusCode::kOk) << use;
  }
  const std::string dicts = s + "{% set a = {s: 1} %}{% set b = {s: 1} %}";  // each key is made, then kept
  EXPECT_EQ(CodeUnder(dicts, 21000, 100), absl::StatusCode::kOk);
  EXPECT_EQ(CodeUnder(dicts + "{{ a == b }}", 21000, 100), absl::StatusCode::kResourceExhausted);
}

TEST(JinjaErrorsTest, ALongNameThatIsNotThereIsCutShort) {
  const absl::Status status = RenderError("{{ {}['\u00e9' * 1000000].y }}");
  ExpectStatus(status, absl::StatusCode::kInvalidArgument, "has no attribute '\u00e9\u00e9");
  EXPECT_LT(status.message().size(), 400u);
}

TEST(JinjaErrorsTest, LongConversationsFit) {
  auto chat = Compile("{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim + '</s>' }}{% endfor %}");
  ASSERT_TRUE(chat.ok());
  auto large = (*chat)->Render({{"user", std::string(10'000'000, 'a')}}, true, {});
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->size(), 10'000'010u);
  auto many = (*chat)->Render(std::vector<ChatMessage>(10'000, {"user", "hello"}), true, {});
  ASSERT_TRUE(many.ok()) << many.status();
}

}  // namespace
}  // namespace swiftcache::gateway::text
