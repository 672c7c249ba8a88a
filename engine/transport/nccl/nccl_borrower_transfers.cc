// SPDX-License-Identifier: Apache-2.0
// The half of NcclBorrower that moves: from what is asked for to a message a donor, and back to what became of it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "engine/backend/cuda/cuda_address.h"
#include "engine/transport/nccl/nccl_borrower.h"
#include "engine/transport/nccl/nccl_borrower_channel.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::nccl {
namespace {

void AddOnce(std::vector<kv::LeaseId>& leases, kv::LeaseId lease) {
  if (std::find(leases.begin(), leases.end(), lease) == leases.end()) leases.push_back(lease);
}

// Whether a move continues the last piece at both ends.
bool Continues(const NcclTransfer& transfer, uint32_t lease, const NcclMove& move) {
  if (transfer.message.head.kind != NcclKind::kLoad || transfer.message.pieces.empty()) return false;
  const NcclPiece& last = transfer.message.pieces.back();
  return last.lease == lease && move.offset_bytes == last.offset + last.bytes &&
         move.here[0] == transfer.here.back()[0] + last.bytes && last.bytes + move.bytes <= kNcclGroupBytes;
}

uint32_t PlaceOf(NcclTransfer& transfer, const NcclLeasePtr& lease) {
  const auto [it, is_new] = transfer.places.try_emplace(lease.get(), static_cast<uint32_t>(transfer.leases.size()));
  if (is_new) {
    transfer.leases.push_back(lease);
    transfer.message.leases.push_back(lease->spec.lease.value());
    transfer.lost.push_back(false);
  }
  return it->second;
}

// How many pieces it is: a donor takes no more of a store at once than it has room for.
int64_t NumPieces(NcclKind kind, const NcclMove& move) {
  return kind == NcclKind::kStore ? CeilDiv(move.bytes, kMaxNcclStoreBytes) : 1;
}

void AddStore(NcclTransfer& transfer, const NcclPiece& whole, const NcclMove& move) {
  for (int64_t done = 0; done < move.bytes; done += kMaxNcclStoreBytes) {
    NcclPiece piece = whole;
    piece.offset += done;
    piece.bytes = static_cast<uint32_t>(std::min(kMaxNcclStoreBytes, move.bytes - done));
    transfer.message.pieces.push_back(piece);
    transfer.here.push_back({move.here[0] + done, move.here[1] + done});
  }
  transfer.stores.push_back({move.ticket, whole.lease});
}

void Add(NcclTransfer& transfer, const NcclLeasePtr& lease, const NcclMove& move) {
  const uint32_t place = PlaceOf(transfer, lease);
  const NcclPiece piece = {.offset = move.offset_bytes,
                           .lease = static_cast<uint16_t>(place),
                           .first_is_there = static_cast<uint16_t>(move.first_is_there ? 1 : 0),
                           .bytes = static_cast<uint32_t>(move.bytes)};
  transfer.bytes += piece.bytes_of_all(transfer.message.head);
  if (Continues(transfer, place, move)) {
    transfer.message.pieces.back().bytes += piece.bytes;
    return;
  }
  if (transfer.message.head.kind == NcclKind::kStore) return AddStore(transfer, piece, move);
  transfer.message.pieces.push_back(piece);
  transfer.here.push_back(move.here);
}

}  // namespace

NcclBegun NcclBorrower::Begin(NcclMoves moves) {
  NcclBegun begun;
  {
    absl::MutexLock lock(&mutex_);
    Assign(moves, begun);
    for (const NcclTransferPtr& transfer : begun.transfers) transfers_.push_back(transfer);
  }
  for (const NcclTransferPtr& transfer : begun.transfers) Post(moves, transfer);
  return begun;
}

void NcclBorrower::Assign(const NcclMoves& moves, NcclBegun& begun) {
  for (const NcclMove& move : moves.moves) {
    const NcclLeasePtr lease = Find(move.lease);
    if (lease == nullptr || lease->state != NcclLease::State::kOpen || lease->abandoned) {
      Refuse(moves, move, begun);
      continue;
    }
    const int64_t reach = move.bytes + (moves.layers - 1) * moves.layer_stride;
    CHECK(move.bytes > 0 && move.bytes <= kMaxNcclPieceBytes && move.offset_bytes >= 0 &&
          move.offset_bytes <= lease->spec.bytes - reach)
        << moves.layers << " pieces of " << move.bytes << " bytes at " << move.offset_bytes << " of lease "
        << move.lease;
    const NcclTransferPtr transfer = TransferFor(moves, lease, NumPieces(moves.kind, move), begun);
    if (transfer == nullptr) {
      Refuse(moves, move, begun);
    } else {
      Add(*transfer, lease, move);
    }
  }
}

// The last one of its donor that has room. Null: a stream of more pieces than a message carries; two streams would wait
// for each other's slots.
NcclTransferPtr NcclBorrower::TransferFor(const NcclMoves& moves, const NcclLeasePtr& lease, int64_t more,
                                          NcclBegun& begun) {
  const auto of_donor = [&](const NcclTransferPtr& transfer) { return transfer->channel == lease->channel; };
  const auto it = std::find_if(begun.transfers.rbegin(), begun.transfers.rend(), of_donor);
  if (it != begun.transfers.rend()) {
    const NcclTransfer& last = **it;
    const auto pieces = static_cast<int64_t>(last.message.pieces.size()) + more;
    const bool has_room = pieces <= kMaxNcclPieces && pieces * last.message.head.arrivals() <= kMaxNcclSlices &&
                          (last.leases.size() < kMaxNcclLeases || last.places.contains(lease.get()));
    if (has_room) return *it;
    if (moves.kind == NcclKind::kStream) return nullptr;
  }
  auto transfer = std::make_shared<NcclTransfer>();
  transfer->channel = lease->channel;
  transfer->message.head.kind = moves.kind;
  transfer->message.head.layers = static_cast<uint32_t>(moves.layers);
  transfer->message.head.layer_stride = moves.layer_stride;
  transfer->message.head.first_again = moves.first_again ? 1 : 0;
  transfer->began = clock_.Now();
  begun.transfers.push_back(transfer);
  return transfer;
}

void NcclBorrower::Refuse(const NcclMoves& moves, const NcclMove& move, NcclBegun& begun) {
  AddOnce(begun.lost, move.lease);
  if (moves.kind != NcclKind::kStore) return;
  const absl::Status why = absl::UnavailableError(absl::StrCat("lease ", move.lease.value(), " has no channel"));
  const auto answer = [ticket = move.ticket, why](TransportEvents& events) { events.OnStored(ticket, why); };
  if (const NcclLeasePtr lease = Find(move.lease)) return TellLater(lease, answer);
  Later([this, answer] { answer(events_); });
}

void NcclBorrower::Post(const NcclMoves& moves, const NcclTransferPtr& transfer) {
  transfer->message.head.num_leases = static_cast<uint32_t>(transfer->message.leases.size());
  transfer->message.head.num_pieces = static_cast<uint32_t>(transfer->message.pieces.size());
  std::vector<NcclGroup> groups = MakeNcclGroups(transfer->message, [&](size_t piece, int64_t arrival) {
    return backend::cuda::ToNumber(transfer->here[piece][arrival % 2]);
  });
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].ready = moves.kind != NcclKind::kStream || i < 2;
    if (groups[i].ready) groups[i].after = moves.after;
  }
  const auto direction = moves.kind == NcclKind::kStore ? NcclDirection::kSend : NcclDirection::kReceive;
  auto batch = std::make_shared<NcclBatch>(direction, std::move(groups));
  batch->announce = [channel = transfer->channel.get(), transfer](uint64_t number) {
    return channel->Announce(transfer, number);
  };
  batch->is_wanted = [this, transfer] { return IsWanted(*transfer); };
  batch->ended = [this, transfer](bool whole) { OnTransferEnded(transfer, whole); };
  transfer->batch = batch;
  if (transfer->channel->link().Post(batch)) return;
  batch->announce = nullptr;
  batch->is_wanted = nullptr;
  batch->ended = nullptr;
  OnTransferEnded(transfer, false);  // at once: the thread may have ended, and whoever awaits it would wait for ever
}

NcclTransferPtr NcclBorrower::FindAnnounced(const NcclBorrowerChannel& channel, int64_t batch) {
  absl::MutexLock lock(&mutex_);
  const auto it = channel.announced.find(batch);
  return it == channel.announced.end() ? nullptr : it->second;
}

void NcclBorrower::NoteAnnounced(NcclBorrowerChannel& channel, int64_t batch, const NcclTransferPtr& transfer) {
  absl::MutexLock lock(&mutex_);
  channel.announced[batch] = transfer;
}

void NcclBorrower::NoteAnswer(NcclTransfer& transfer, const NcclAnswer& answer) {
  absl::MutexLock lock(&mutex_);
  if (answer.done) transfer.held = answer.leases;
  for (size_t i = 0; i < transfer.lost.size(); ++i) {
    if (answer.leases[i] == 0) transfer.lost[i] = true;
  }
}

// The verdict is the donor's, of the time after its own events had passed (NcclDonor::Fence has the argument); `whole`
// says that ours have passed, too.
void NcclBorrower::OnTransferEnded(const NcclTransferPtr& transfer, bool whole) {
  absl::MutexLock lock(&mutex_);
  std::erase(transfers_, transfer);
  transfer->channel->announced.erase(transfer->message.head.batch);
  if (whole) NoteTime(*transfer);
  for (size_t i = 0; i < transfer->leases.size(); ++i) {
    if (!whole) transfer->lost[i] = true;
    absl::Status fate;
    if (transfer->lost[i]) {
      fate = whole ? absl::FailedPreconditionError("the donor fenced the lease")
                   : absl::UnavailableError("the donor did not answer, or its channel closed before it did");
    }
    AnswerStores(*transfer, transfer->leases[i].get(), fate);
  }
  transfer->over = true;
}

// A stream goes on at the pace of the step that reads it, and says nothing of the link's.
void NcclBorrower::NoteTime(const NcclTransfer& transfer) {
  const absl::Time now = clock_.Now();
  const bool stores = transfer.message.head.kind == NcclKind::kStore;
  absl::Time& last = stores ? last_stored_ : last_loaded_;
  (stores ? stats_.stored_bytes : stats_.loaded_bytes) += transfer.bytes;
  (stores ? stats_.store_time : stats_.load_time) += now - std::max(transfer.began, last);
  const bool lost = std::find(transfer.lost.begin(), transfer.lost.end(), true) != transfer.lost.end();
  const bool timed = transfer.message.head.kind == NcclKind::kLoad && !lost;
  if (timed) stats_.load_rate.Note(transfer.bytes, now - transfer.began);
  last = now;
}

void NcclBorrower::AnswerStores(NcclTransfer& transfer, const NcclLease* lease, const absl::Status& fate) {
  for (NcclTransfer::Store& store : transfer.stores) {
    if (transfer.leases[store.lease].get() != lease || std::exchange(store.answered, true)) continue;
    TellLater(transfer.leases[store.lease],
              [ticket = store.ticket, fate](TransportEvents& events) { events.OnStored(ticket, fate); });
  }
}

bool NcclBorrower::IsWanted(const NcclTransfer& transfer) const {
  absl::MutexLock lock(&mutex_);
  return std::find(transfer.lost.begin(), transfer.lost.end(), false) != transfer.lost.end();
}

// Whether anything of it is under way.
bool NcclBorrower::MarkLost(const NcclLease& lease) {
  bool any = false;
  for (const NcclTransferPtr& transfer : transfers_) {
    for (size_t i = 0; i < transfer->leases.size(); ++i) {
      if (transfer->leases[i].get() == &lease) any = transfer->lost[i] = true;
    }
  }
  return any;
}

std::vector<kv::LeaseId> NcclBorrower::LostLocked(const NcclBegun& begun) const {
  std::vector<kv::LeaseId> lost = begun.lost;
  for (const NcclTransferPtr& transfer : begun.transfers) {
    for (size_t i = 0; i < transfer->lost.size(); ++i) {
      if (transfer->lost[i]) AddOnce(lost, transfer->leases[i]->spec.lease);
    }
  }
  return lost;
}

std::vector<kv::LeaseId> NcclBorrower::LostOf(const NcclBegun& begun) const {
  absl::MutexLock lock(&mutex_);
  return LostLocked(begun);
}

std::vector<kv::LeaseId> NcclBorrower::AwaitLost(const NcclBegun& begun) const {
  const auto is_over = [&begun] {
    return std::all_of(begun.transfers.begin(), begun.transfers.end(),
                       [](const auto& transfer) { return transfer->over; });
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&is_over));
  return LostLocked(begun);
}

void NcclBorrower::AddStats(TransportStats& stats) const {
  absl::MutexLock lock(&mutex_);
  stats.stored_bytes += stats_.stored_bytes;
  stats.loaded_bytes += stats_.loaded_bytes;
  stats.store_time += stats_.store_time;
  stats.load_time += stats_.load_time;
  stats.load_rate = stats_.load_rate;
}

}  // namespace swiftcache::engine::transport::nccl
