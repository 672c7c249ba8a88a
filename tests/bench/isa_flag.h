// SPDX-License-Identifier: Apache-2.0
// What a benchmark says of a flag --isa that IsaOfName does not know.
#pragma once

namespace swiftcache {

inline constexpr char kWantedIsa[] = "amx, avx512_bf16, avx512_vnni, avx512, avx_vnni, avx2 or baseline";

}  // namespace swiftcache
