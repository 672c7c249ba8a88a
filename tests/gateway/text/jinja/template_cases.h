// SPDX-License-Identifier: Apache-2.0
// Cases in JSON lines, and a rendering of one with the clock and tokens that render_reference.py uses.
#pragma once

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gateway/text/chat_template.h"
#include "nlohmann/json.hpp"

namespace swiftcache::gateway::text {

inline absl::Time FixedTime() { return absl::FromUnixSeconds(1700000000); }

inline std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline std::vector<nlohmann::json> ParseLines(const std::string& lines) {
  std::vector<nlohmann::json> cases;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) cases.push_back(nlohmann::json::parse(line));
  return cases;
}

inline std::vector<ChatMessage> MessagesOf(const nlohmann::json& testcase) {
  std::vector<ChatMessage> messages;
  for (const auto& message : testcase["messages"]) messages.push_back({message["role"], message["content"]});
  return messages;
}

inline absl::StatusOr<std::unique_ptr<ChatTemplate>> Compile(const std::string& source) {
  ChatTemplate::Options options;
  options.bos_token = "<s>";
  options.eos_token = "</s>";
  options.wall_time = FixedTime;
  return ChatTemplate::Create(source, options);
}

}  // namespace swiftcache::gateway::text
