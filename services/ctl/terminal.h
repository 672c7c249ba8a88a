// SPDX-License-Identifier: Apache-2.0
// Standard output to a terminal or to a pipe.
//
//   Show(response.text());                  // at once
//   std::cout << Faint("ttft 12 ms") << std::endl;
#pragma once

#include <unistd.h>

#include <string>

namespace swiftcache::services::ctl {

/// Whether standard output is a terminal.
bool OnTerminal();

/// Writes and flushes a model's text. On a terminal control characters become '?', so that no model commands it.
void Show(const std::string& text);

/// Paler, where the descriptor that it is for is a terminal.
std::string Faint(const std::string& text, int descriptor = STDOUT_FILENO);
/// Bolder on a terminal.
std::string Strong(const std::string& text);

/// The first 20 words of a longer text, 400 bytes at most, with the number of all: "A lighthouse stood ... (780 words)".
std::string Shortened(const std::string& text);

/// Control characters other than line feed and tab become '?'.
std::string WithoutControls(std::string text);

}  // namespace swiftcache::services::ctl
