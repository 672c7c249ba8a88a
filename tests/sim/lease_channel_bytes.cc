// SPDX-License-Identifier: Apache-2.0
// The half of LeaseChannels that moves bytes for a loop.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/lease_channel.h"

namespace swiftcache::sim {

using engine::backend::DeviceAddress;
using engine::transport::LoadPiece;
using engine::transport::StorePiece;
using engine::transport::Ticket;

std::vector<Ticket> LeaseChannels::Store(std::span<const StorePiece> pieces, const engine::backend::Fence& after) {
  after.Wait();
  std::vector<Ticket> tickets;
  for (const StorePiece& piece : pieces) tickets.push_back(Ticket(Store(piece)));
  return tickets;
}

int64_t LeaseChannels::Store(const StorePiece& piece) {
  const int64_t ticket = ++last_ticket_;
  PendingStore& store = stores_[ticket];
  store.to = piece.lease;
  ++tally_.stores;
  std::function<Words()> read = Source(piece, store);
  const ConnectionPtr connection = Outgoing(piece.lease);
  if (connection == nullptr || released_.contains(piece.lease)) {
    sim_.Fail(absl::StrCat(instance_, " stores into lease ", piece.lease.value(), ", which is given back or closed"));
  }
  if (connection == nullptr || abandoned_.contains(piece.lease)) {
    process_.After(network_.Delay(), [this, ticket] { Finish(ticket, false); });
    return ticket;
  }
  ToDonor(
      connection,
      [connection, ticket, first_word = piece.offset_bytes / 8, read = std::move(read)](LeaseChannels& to) {
        to.Receive(connection, ticket, first_word, read());
      },
      /*may_repeat=*/false);
  return ticket;
}

// It is read at once or when it arrives, the first and the last moment at which it may be.
std::function<LeaseChannels::Words()> LeaseChannels::Source(const StorePiece& piece, PendingStore& store) {
  std::shared_ptr<Memory> memory = memory_;
  for (const auto& [id, view] : views_) {
    const DeviceAddress begin = view.memory->At(view.first_cell), end = begin + view.num_cells * kCellBytes;
    if (piece.from < begin || piece.from >= end) continue;
    store.from = id;
    memory = view.memory;
  }
  if (store.from && released_.contains(*store.from)) {
    sim_.Fail(absl::StrCat(instance_, " stores from lease ", store.from->value(), ", given back"));
  }
  const uint64_t* const from = WordAt(piece.from);
  std::function<Words()> read = [memory, from, count = piece.bytes / 8] { return Words(from, from + count); };
  if (sim_.random.Chance(0.5)) read = [words = read()] { return words; };
  return read;
}

void LeaseChannels::Receive(const ConnectionPtr& connection, int64_t ticket, int64_t first_word, const Words& words) {
  const auto it = grants_.find(connection->lease);
  const bool ok = it != grants_.end() && it->second.connection == connection;
  if (ok) {
    std::copy(words.begin(), words.end(), memory_->words.begin() + it->second.first_cell * kCellWords + first_word);
  }
  if (!ok) ++tally_.refused_stores;
  ToBorrower(connection, [ticket, ok](LeaseChannels& to) { to.Finish(ticket, ok); });
}

Ticket LeaseChannels::Load(std::vector<LoadPiece> pieces, const engine::backend::Fence& after) {
  after.Wait();
  const int64_t ticket = ++last_ticket_;
  PendingLoad& load = loads_[ticket];
  load.pieces = std::move(pieces);
  if (sim_.random.Chance(0.25)) Copy(load);
  return Ticket(ticket);
}

std::vector<LeaseId> LeaseChannels::Await(Ticket ticket) {
  loop_.pass(sim_.random.Chance(2 * network_.slow) ? sim_.random.Below(60'000) : sim_.random.Between(5, 300));
  PendingLoad& load = loads_.at(ticket.value());
  if (!load.copied) Copy(load);
  return std::move(loads_.extract(ticket.value()).mapped().lost);
}

void LeaseChannels::Copy(PendingLoad& load) {
  load.copied = true;
  for (const LoadPiece& piece : load.pieces) {
    const View* view = Find(piece.lease);
    if (view == nullptr) {
      return sim_.Fail(absl::StrCat(instance_, " loads from lease ", piece.lease.value(), ", not open"));
    }
    NoteWrite(piece.to, piece.bytes);
    std::copy_n(WordAt(view->memory->At(view->first_cell) + piece.offset_bytes), piece.bytes / 8, WordAt(piece.to));
    const bool good = view->Holds() && !abandoned_.contains(piece.lease);
    if (good || bug_ == PlantedBug::kMovesUnchecked || bug_ == PlantedBug::kNoGenerationCheck) {
      ++tally_.moved_back;
    } else if (std::find(load.lost.begin(), load.lost.end(), piece.lease) == load.lost.end()) {
      load.lost.push_back(piece.lease);
    }
  }
}

std::unique_ptr<engine::transport::SliceStream> LeaseChannels::BeginStream(engine::transport::StreamSpec,
                                                                           const engine::backend::Fence&) {
  sim_.Fail("nothing here streams");
  return nullptr;
}

bool LeaseChannels::BeginReads(std::span<const engine::backend::WordCheck> checks) {
  for (const engine::backend::WordCheck& check : checks) {
    const auto known = lease_of_.find({check.word, check.granted});
    if (known == lease_of_.end()) {
      sim_.Fail(absl::StrCat(instance_, " reads a lease that it has closed"));
      return false;
    }
    if (released_.contains(known->second)) {
      sim_.Fail(absl::StrCat(instance_, " reads lease ", known->second.value(), ", given back"));
      return false;
    }
    in_step_.push_back(known->second);
  }
  return true;
}

bool LeaseChannels::IsRead(LeaseId id) const {
  const auto loads = [id](const auto& load) {
    return std::any_of(load.second.pieces.begin(), load.second.pieces.end(),
                       [id](const LoadPiece& piece) { return piece.lease == id; });
  };
  return std::find(in_step_.begin(), in_step_.end(), id) != in_step_.end() ||
         std::any_of(loads_.begin(), loads_.end(), loads) ||
         std::any_of(stores_.begin(), stores_.end(), [id](const auto& store) { return store.second.from == id; });
}

void LeaseChannels::NoteWrite(DeviceAddress to, int64_t bytes) {
  const int64_t first = (to - memory_->At(0)) / kCellBytes, last = (to + (bytes - 1) - memory_->At(0)) / kCellBytes;
  if (first < 0 || last >= memory_->num_cells()) return sim_.Fail(absl::StrCat(instance_, " writes beyond its arena"));
  for (int64_t cell = first; cell <= last; ++cell) {
    if (const int64_t lease = grant_of(cell); lease != 0) {
      sim_.Fail(absl::StrCat(instance_, " writes own KV into cell ", cell, ", which it has granted to lease ", lease));
    }
  }
}

}  // namespace swiftcache::sim
