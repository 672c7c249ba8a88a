// SPDX-License-Identifier: Apache-2.0
// RenderPieces: what came out of a message stays marked on its way through the template.
#include <gtest/gtest.h>

#include "tests/gateway/text/jinja/template_cases.h"

namespace swiftcache::gateway::text {
namespace {

/// The rendering with [ ] around what came out of a message.
std::string Pieces(const std::string& source, const std::vector<ChatMessage>& messages) {
  auto chat = Compile(source);
  if (!chat.ok()) return chat.status().ToString();
  auto pieces = (*chat)->RenderPieces(messages, false, {});
  if (!pieces.ok()) return pieces.status().ToString();
  std::string out, plain;
  for (const RenderedPiece& piece : *pieces) {
    out += piece.from_message ? "[" + piece.text + "]" : piece.text;
    plain += piece.text;
  }
  EXPECT_EQ(plain, *(*chat)->Render(messages, false, {}));
  return out;
}

std::string Of(const std::string& expression, const std::string& content) {
  return Pieces("{{ " + expression + " }}", {{"user", content}});
}

TEST(JinjaMarksTest, ContentIsMarkedAndTheTemplateIsNot) {
  EXPECT_EQ(Pieces("{% for m in messages %}<|{{ m.role }}|>{{ m['content'] + '<|end|>' }}{% endfor %}",
                   {{"user", "<|end|>"}, {"assistant", ""}, {"user", "b"}}),
            "<|user|>[<|end|>]<|end|><|assistant|><|end|><|user|>[b]<|end|>");
}

TEST(JinjaMarksTest, MarksFollowTheCharacters) {
  const std::string c = "messages[0].content";
  EXPECT_EQ(Of("'a' + " + c + "|trim ~ 'b'", "  x  "), "a[x]b");
  EXPECT_EQ(Of("('a' + " + c + ")[::-1]", "xy"), "[yx]a");
  EXPECT_EQ(Of("('a' + " + c + " + 'b')[1:-1]", "xy"), "[xy]");
  EXPECT_EQ(Of("('ab' + " + c + ")|upper", "xy\xC3\xA9"), "AB[XY\xC3\x89]");
  EXPECT_EQ(Of("('<' + " + c + ").replace('<', '(')", "<x"), "(([x]");
  EXPECT_EQ(Of("'a-b'.replace('-', " + c + ")", "x"), "a[x]b");
  EXPECT_EQ(Of(c + ".split('|')|join(',')", "x|y"), "[x],[y]");
  EXPECT_EQ(Of("[" + c + ", 'k']|tojson", "x\n"), "[\"[x\\n]\", \"k\"]");
  EXPECT_EQ(Of("('p' ~ " + c + ")|indent(2)", "x\ny"), "p[x]\n  [y]");
  EXPECT_EQ(Of("'{}!'.format(" + c + ")", "x"), "[x]!");
  EXPECT_EQ(Of(c + " * 2", "x"), "[xx]");
  EXPECT_EQ(Of("{'k': " + c + "}", "x"), "{'k': '[x]'}");
  EXPECT_EQ(Of(c + "|list|last", "xy"), "[y]");
  EXPECT_EQ(Of("(" + c + " + '<')|e", "&"), "[&amp;]&lt;");
}

TEST(JinjaMarksTest, MarksSurviveVariablesMacrosAndBlocks) {
  EXPECT_EQ(Pieces("{% macro f(t) %}<{{ t }}>{% endmacro %}{% set ns = namespace(s='') %}{% for m in messages %}"
                   "{% set ns.s = ns.s ~ f(m.content) %}{% endfor %}{% set b %}({{ ns.s }}){% endset %}{{ b }}",
                   {{"user", "x"}, {"user", "y"}}),
            "(<[x]><[y]>)");
  EXPECT_EQ(Pieces("{% filter upper %}a{{ messages[0].content }}{% endfilter %}", {{"user", "x"}}), "A[X]");
}

}  // namespace
}  // namespace swiftcache::gateway::text
