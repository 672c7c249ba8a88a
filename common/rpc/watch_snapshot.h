// SPDX-License-Identifier: Apache-2.0
// The broker's Watch begins with a snapshot, which may come in parts.
//
//   if (news.has_snapshot() && !ReadWholeSnapshot(*reader, news)) ...  // the stream has ended
#pragma once

#include "swiftcache/v1/broker.pb.h"

namespace swiftcache {

/// Reads the parts that follow `first`, a snapshot, and puts them together there. False: the stream ended before the
/// last one, or brought something else.
template <typename Reader>
bool ReadWholeSnapshot(Reader& reader, v1::WatchResponse& first) {
  while (first.snapshot().more()) {
    v1::WatchResponse part;
    if (!reader.Read(&part) || !part.has_snapshot() || part.version() != first.version() + 1) return false;
    first.mutable_snapshot()->set_more(false);
    first.MergeFrom(part);
  }
  return true;
}

}  // namespace swiftcache
