// SPDX-License-Identifier: Apache-2.0
// The language against what jinja2 made of the same templates (tests/data/jinja/cases.jsonl, by render_reference.py),
// and the golden chat cases of the models.
#include <gtest/gtest.h>

#include "tests/gateway/text/jinja/template_cases.h"

namespace swiftcache::gateway::text {
namespace {

const std::string kData = std::string(SWIFTCACHE_SOURCE_DIR) + "/tests/data/";

constexpr char kSmolLm2[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a "
    "helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
    "message['role'] "
    "+ '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\n' "
    "}}{% endif %}";

/// Renders every case of a golden file; returns how many there were.
int CheckGolden(const std::string& source, const std::string& file) {
  auto chat = Compile(source);
  EXPECT_TRUE(chat.ok()) << chat.status();
  if (!chat.ok()) return 0;
  int count = 0;
  for (const auto& testcase : ParseLines(ReadFile(file))) {
    auto text = (*chat)->Render(MessagesOf(testcase), testcase["add_generation_prompt"], {});
    EXPECT_TRUE(text.ok()) << text.status();
    if (text.ok()) {
      EXPECT_EQ(*text, testcase["rendered"].get<std::string>());
    }
    ++count;
  }
  return count;
}

TEST(JinjaLanguageTest, TheDateIsTheWallClocksAlsoAfterItWasSet) {
  setenv("TZ", "UTC", 1);
  absl::Time wall_time = absl::UnixEpoch();
  ChatTemplate::Options options;
  options.wall_time = [&] { return wall_time; };
  const auto chat = ChatTemplate::Create("{{ strftime_now('%Y-%m-%d') }}", options);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(*(*chat)->Render({}, false, {}), "1970-01-01");
  wall_time = absl::FromUnixSeconds(1700000000);
  EXPECT_EQ(*(*chat)->Render({}, false, {}), "2023-11-14");
}

TEST(JinjaLanguageTest, RendersWhatJinja2Renders) {
  setenv("TZ", "UTC", 1);
  int rendered = 0, refused = 0;
  for (const auto& testcase : ParseLines(ReadFile(kData + "jinja/cases.jsonl"))) {
    SCOPED_TRACE(testcase["template"].get<std::string>());
    auto chat = Compile(testcase["template"]);
    ASSERT_TRUE(chat.ok()) << chat.status();
    auto text = (*chat)->Render(MessagesOf(testcase), testcase["add_generation_prompt"], {});
    if (testcase.contains("error")) {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << text.status();
      ++refused;
    } else {
      EXPECT_TRUE(text.ok()) << text.status();
      if (text.ok()) {
        EXPECT_EQ(*text, testcase["rendered"].get<std::string>());
      }
      ++rendered;
    }
  }
  EXPECT_GT(rendered, 60);
  EXPECT_GT(refused, 10);
}

// Of Qwen3: what a client asks for with chat_template_kwargs.
TEST(JinjaLanguageTest, AVariableTurnsThinkingOff) {
  int rendered = 0;
  for (const auto& testcase : ParseLines(ReadFile(kData + "jinja/cases.jsonl"))) {
    const std::string source = testcase["template"];
    if (source.find("enable_thinking") == std::string::npos) continue;
    auto chat = Compile(source);
    ASSERT_TRUE(chat.ok()) << chat.status();
    const auto with = [&](const TemplateVariables& variables) {
      return *(*chat)->Render({{"user", "Hi"}}, /*add_generation_prompt=*/true, variables);
    };
    const std::string thinks = with({});
    EXPECT_EQ(with({{"enable_thinking", true}}), thinks);
    EXPECT_EQ(with({{"enable_thinking", false}}), thinks + "<think>\n\n</think>\n\n");
    ++rendered;
  }
  EXPECT_GT(rendered, 0);
}

TEST(JinjaLanguageTest, RendersSmolLm2AsTheGoldenCases) {
  EXPECT_EQ(CheckGolden(kSmolLm2, kData + "smollm2/chat.jsonl"), 31);
}

TEST(JinjaLanguageTest, RendersTheTinyModelsAsTheGoldenCases) {
  for (const char* model : {"tiny-llama-a", "tiny-llama-b", "tiny-qwen2", "tiny-qwen3"}) {
    SCOPED_TRACE(model);
    std::string folder = kData + "tiny/" + model;
    auto config = nlohmann::json::parse(ReadFile(folder + "/tokenizer_config.json"));
    std::string bos =
        config.contains("bos_token") && config["bos_token"].is_string() ? config["bos_token"].get<std::string>() : "";
    ChatTemplate::Options options;
    options.bos_token = bos;
    auto chat = ChatTemplate::Create(config["chat_template"], options);
    ASSERT_TRUE(chat.ok()) << chat.status();
    int count = 0;
    for (const auto& testcase : ParseLines(ReadFile(folder + "/chat.jsonl"))) {
      auto text = (*chat)->Render(MessagesOf(testcase), testcase["add_generation_prompt"], {});
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, testcase["rendered"].get<std::string>());
      ++count;
    }
    EXPECT_GT(count, 0);
  }
}

}  // namespace
}  // namespace swiftcache::gateway::text
