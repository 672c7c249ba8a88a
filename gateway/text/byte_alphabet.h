// SPDX-License-Identifier: Apache-2.0
// GPT-2's byte alphabet: every byte has one printable character, in which byte-level vocabularies are spelled.
//
//   ByteToLetter(' ');              // U+0120
//   LettersToBytes("\u0120the");    // " the"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace swiftcache::gateway::text {

char32_t ByteToLetter(uint8_t byte);

/// Nothing if a character is not of the alphabet.
std::optional<std::string> LettersToBytes(std::string_view letters);

}  // namespace swiftcache::gateway::text
