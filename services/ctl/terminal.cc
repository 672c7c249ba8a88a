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

std::string Shortened(const std::string& text) {
  constexpr char kSpaces[] = " \t\n\r";
  constexpr int kShown = 20;
  constexpr size_t kMostBytes = 400;
  size_t end = 0, shown_end = 0;
  int words = 0;
  for (size_t begin; (begin = text.find_first_not_of(kSpaces, end)) != std::string::npos;) {
    end = std::min(text.find_first_of(kSpaces, begin), text.size());
    if (++words == kShown) shown_end = end;
  }
  if (words <= kShown && text.size() <= kMostBytes) return text;
  shown_end = std::min(words < kShown ? text.size() : shown_end, kMostBytes);
  while (shown_end > 0 && (text[shown_end] & 0xC0) == 0x80) --shown_end;  // no part of a character
  const std::string all = words > kShown ? std::to_string(words) + " words" : std::to_string(text.size()) + " bytes";
  return text.substr(0, shown_end) + " ... (" + all + ")";
}

void Show(const std::string& text) { std::cout << (OnTerminal() ? WithoutControls(text) : text) << std::flush; }

std::string Faint(const std::string& text, int descriptor) {
  return isatty(descriptor) == 1 ? "\033[2m" + text + "\033[0m" : text;
}
std::string Strong(const std::string& text) { return OnTerminal() ? "\033[1m" + text + "\033[0m" : text; }

}  // namespace swiftcache::services::ctl
