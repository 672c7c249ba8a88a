// SPDX-License-Identifier: Apache-2.0
// Template source from bytes, rendered over fixed messages with small limits. The pieces must be the rendering.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "gateway/text/chat_template.h"

namespace {

namespace text = swiftcache::gateway::text;

absl::Time FixedTime() { return absl::FromUnixSeconds(1700000000); }

std::string Joined(const std::vector<text::RenderedPiece>& pieces) {
  std::string joined;
  for (const auto& piece : pieces) joined += piece.text;
  return joined;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  text::ChatTemplate::Options options;
  options.bos_token = "<s>";
  options.max_steps = 20'000;
  options.max_output_bytes = 1 << 16;
  options.max_memory_bytes = 1 << 22;
  options.wall_time = FixedTime;
  auto chat = text::ChatTemplate::Create(std::string(reinterpret_cast<const char*>(data), size), options);
  if (!chat.ok()) return 0;
  const std::vector<text::ChatMessage> messages = {
      {"system", " s\n"}, {"user", "\xC3\xA9<|im_end|>{{"}, {"assistant", "<think>\nx</think> 12"}, {"user", ""}};
  auto rendered = (*chat)->Render(messages, true, {});
  auto pieces = (*chat)->RenderPieces(messages, true, {});
  if (rendered.ok() != pieces.ok() || (rendered.ok() && Joined(*pieces) != *rendered)) std::abort();
  return 0;
}
