// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_lease.h"

#include <atomic>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/transport/shm_foreign_memory.h"

namespace swiftcache::engine::transport {

absl::StatusOr<ShmMapped> MapGrant(const OpenSpec& wanted, const ShmGrantMessage& message,
                                   const std::vector<memory::UniqueFd>& fds, PeerMemory& memory) {
  const int64_t page = sysconf(_SC_PAGESIZE), word_offset = message.grant.word * int64_t{sizeof(uint64_t)};
  RETURN_IF_ERROR(memory.CheckGrant(message, wanted.bytes));
  if (fds.size() != message.pieces.size() + 1 || message.grant.epoch != wanted.epoch.value()) {
    return absl::InvalidArgumentError(absl::StrCat("GRANT of lease ", wanted.lease.value(), " at epoch ",
                                                   message.grant.epoch, " brings ", fds.size(), " descriptors for ",
                                                   message.pieces.size(), " pieces; epoch ", wanted.epoch.value(),
                                                   " and one more are wanted"));
  }
  ASSIGN_OR_RETURN(memory::Mapping generation, memory::Mapping::Reserve(page));
  RETURN_IF_ERROR(MapForeignMemory(fds[0].get(), word_offset / page * page, page, generation.base()));
  ASSIGN_OR_RETURN(std::unique_ptr<MappedLease> mapped,
                   memory.MapLease(wanted.bytes, message.pieces, std::span(fds).subspan(1)));
  const auto* word = reinterpret_cast<const std::atomic<uint64_t>*>(generation.base() + word_offset % page);
  const LeaseView view = {.base = mapped->base(),
                          .bytes = wanted.bytes,
                          .word = {.word = word, .granted = wanted.epoch.value()},
                          .slow_link = memory.HasSlowLink(wanted.channel, *mapped, wanted.bytes)};
  return ShmMapped{std::move(generation), std::move(mapped), view};
}

}  // namespace swiftcache::engine::transport
