// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/terminal.h"

#include <algorithm>
#include <iostream>
#include <utility>

namespace swiftcache::services::ctl {

bool OnTerminal() { return isatty(STDOUT_FILENO) == 1; }

std::string WithoutControls(std::string text) {
  const auto is_control = [](char c) { return (c >= 0 && c < 0x20 && c != '\n' && c != '\t') || c == 0x7F; };
  std::replace_if(text.begin(), text.end(), is_control, '?');
  // U+0080 to U+009F, of which some are for terminals what ESC and a letter are.
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const auto second = static_cast<unsigned char>(text[i + 1]);
    if (text[i] == '\xC2' && second >= 0x80 && second < 0xA0) text.replace(i, 2, "?");
  }
  return text;
}

void Show(const std::string& text) { std::cout << (OnTerminal() ? WithoutControls(text) : text) << std::flush; }

std::string Faint(const std::string& text, int descriptor) {
  return isatty(descriptor) == 1 ? "\033[2m" + text + "\033[0m" : text;
}
std::string Strong(const std::string& text) { return OnTerminal() ? "\033[1m" + text + "\033[0m" : text; }

}  // namespace swiftcache::services::ctl
