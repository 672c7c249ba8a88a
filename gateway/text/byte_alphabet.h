// SPDX-License-Identifier: Apache-2.0
// GPT-2's byte alphabet: one printable character for every byte. Byte-level vocabularies are spelled in it.
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

/// Nothing if a character is not in the alphabet.
std::optional<std::string> LettersToBytes(std::string_view letters);

}  // namespace swiftcache::gateway::text
