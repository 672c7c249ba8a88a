// SPDX-License-Identifier: Apache-2.0
// The chat templates of real models, fetched by tests/fetch-vocabs.sh, against Python's jinja2 on this machine.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "tests/gateway/text/jinja/template_cases.h"

namespace swiftcache::gateway::text {
namespace {

std::filesystem::path TemplateFolder() {
  auto variable = [](const char* name) { return std::string(std::getenv(name) == nullptr ? "" : std::getenv(name)); };
  if (std::string folder = variable("SWIFTCACHE_TEST_VOCABS"); !folder.empty()) return folder + "/templates";
  std::string cache = variable("XDG_CACHE_HOME");
  return (cache.empty() ? variable("HOME") + "/.cache" : cache) + "/swiftcache/test-vocabs/templates";
}

/// What a command prints; its exit code goes to *code.
std::string Output(const std::string& command, int* code) {
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 65536> buffer;
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) out.append(buffer.data(), n);
  int status = pclose(pipe);
  *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

TEST(JinjaRealTemplatesTest, RenderExactlyOrAreRefusedWhenCompiled) {
  setenv("TZ", "UTC", 1);
  std::filesystem::path folder = TemplateFolder();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there: tests/fetch-vocabs.sh fetches it";
  int code = 0;
  std::string script = std::string(SWIFTCACHE_SOURCE_DIR) + "/tests/gateway/text/jinja/render_reference.py";
  std::string reference = Output("python3 '" + script + "' templates '" + folder.string() + "'", &code);
  if (code == 3) GTEST_SKIP() << "python3 has no jinja2: install python3-jinja2";
  ASSERT_EQ(code, 0);
  std::map<std::string, std::unique_ptr<ChatTemplate>> compiled;
  std::set<std::string> refused, exact;
  int renderings = 0;
  for (const auto& testcase : ParseLines(reference)) {
    std::string file = testcase["file"];
    SCOPED_TRACE(file);
    if (!compiled.contains(file) && !refused.contains(file)) {
      auto chat = Compile(ReadFile(folder / file));
      if (chat.ok()) compiled[file] = *std::move(chat);
      if (!chat.ok()) {
        EXPECT_EQ(chat.status().code(), absl::StatusCode::kUnimplemented) << chat.status();
        std::cout << "refused: " << file << ": " << chat.status().message() << "\n";
        refused.insert(file);
      }
    }
    if (refused.contains(file)) continue;
    auto text = compiled[file]->Render(MessagesOf(testcase), testcase["add_generation_prompt"], {});
    if (testcase.contains("error")) {
      EXPECT_FALSE(text.ok()) << "jinja2: " << testcase["error"];
      continue;
    }
    ASSERT_TRUE(text.ok()) << text.status();
    ASSERT_EQ(*text, testcase["rendered"].get<std::string>());
    exact.insert(file);
    ++renderings;
  }
  std::cout << exact.size() << " templates exact in " << renderings << " renderings, " << refused.size()
            << " refused\n";
  EXPECT_GT(renderings, 1000);
  for (const char* wanted : {"meta-llama-Llama-3.1-8B-Instruct.jinja", "meta-llama-Llama-3.2-3B-Instruct.jinja",
                             "Qwen-Qwen2.5-7B-Instruct.jinja", "Qwen-Qwen3-0.6B.jinja",
                             "HuggingFaceTB-SmolLM3-3B.jinja", "mistralai-Mistral-Nemo-Instruct-2407.jinja"}) {
    EXPECT_TRUE(exact.contains(wanted)) << wanted;
  }
}

}  // namespace
}  // namespace swiftcache::gateway::text
