// SPDX-License-Identifier: Apache-2.0
// Moves byte ranges between an engine's own memory and its leases, and hands granted memory to borrowers. A mover: who
// may borrow, when to revoke and what to do about a loss is decided elsewhere (engine/lease, engine/exec).
//
//   donor:     ASSIGN_OR_RETURN(Epoch epoch, transport.Grant({.lease = id, .offset_bytes = ..., .bytes = ...}));
//              ... transport.Fence(id);                        // the memory is the owner's again
//   borrower:  transport.Open({.lease = id, .channel = path, .epoch = epoch, ...});     // -> OnOpened(id, view)
//              std::vector<Ticket> stored = transport.Store(pieces, written);           // -> OnStored(stored[0], status)
//              Ticket load = transport.Load(pieces, written); ... for (LeaseId lost : transport.Await(load)) ...
//              auto stream = transport.BeginStream(spec, written); ... stream->Arrived(layer).Wait(); ... stream->End();
//
// Only the owner writes its arena (ARCHITECTURE.md, decision records): a borrower reads granted memory where it is
// mapped; what it stores waits in its own staging memory until the donor's transport has copied it in. Other transports
// fit behind this interface: CUDA IPC maps peer memory (a store is a pull by the donor's copy engine, the generation
// word lies in pinned host memory). NCCL maps nothing: view.base is the address of nothing, so there is no reading in
// place; a stream and a batch of stores become one control message a donor, which tells the sending side all that it is
// to send.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/strong_id.h"
#include "engine/backend/device_address.h"
#include "engine/backend/fence.h"
#include "engine/backend/step.h"
#include "engine/kv/lease_id.h"
#include "engine/transport/load_rate.h"

namespace swiftcache::engine::transport {

/// A transfer under way; unique in the life of a transport, counting up.
using Ticket = StrongId<struct TicketTag, int64_t>;

/// A lease as its borrower sees it: memory of the donor, mapped read-only, and the word that says whether it still is
/// what was granted. Thread-safety: safe. Ownership: borrows; valid until the lease is closed. Units: bytes.
struct LeaseView {
  backend::DeviceAddress base;  // [bytes], or of nothing where the transport maps nothing
  int64_t bytes = 0;
  /// Where memory is mapped: the donor's. Elsewhere one of the transport's own, on this side, which it changes when it
  /// hears that the lease has ended: it vouches for nothing that was read, Await and End do.
  backend::WordCheck word;
  std::atomic<uint64_t>* reads = nullptr;  // bytes read, as far as the donor is told; null where it cannot be
  bool slow_link = false;                  // read in place it comes much slower than own memory does (measures_links)

  /// So that the donor knows when its memory is at work for others. Called while reading goes on, layer by layer.
  void NoteRead(int64_t bytes) const {
    if (reads != nullptr) reads->fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
  }
  bool Holds() const { return word.Holds(); }
};

/// What a donor hands out.
struct GrantSpec {
  kv::LeaseId lease;
  int64_t offset_bytes = 0;  // in the own arena; a multiple of the page
  int64_t bytes = 0;         // likewise
  std::string borrower_instance;
  std::string capability;  // who shows it, and is that instance, gets the memory
};

/// What a borrower asks a donor for.
struct OpenSpec {
  kv::LeaseId lease;
  std::string channel;  // the donor's socket, as the donor calls it
  std::string capability;
  int64_t bytes = 0;
  kv::Epoch epoch;
  int64_t store_bytes = 0;  // of the largest Store: staging memory has room for a few of them
};

/// One copy of a Store: `bytes` at `from` go to `offset_bytes` of a lease.
struct StorePiece {
  kv::LeaseId lease;
  int64_t offset_bytes = 0;
  backend::DeviceAddress from;
  int64_t bytes = 0;
};

/// One copy of a Load: `bytes` at `offset_bytes` of a lease go to `to`.
struct LoadPiece {
  kv::LeaseId lease;
  int64_t offset_bytes = 0;
  int64_t bytes = 0;
  backend::DeviceAddress to;
};

/// What one step streams: of each source the slices of all layers that the step still reads, layer l's from offset_bytes +
/// l * slice_bytes of its lease to slots[l % 2].
struct StreamSpec {
  struct Source {
    kv::LeaseId lease;
    int64_t offset_bytes = 0;
    backend::DeviceAddress slots[2];
    bool first_is_there = false;  // layer 0 lies in its slot already
  };
  std::vector<Source> sources;
  int64_t num_layers = 0;
  int64_t slice_bytes = 0;
  /// Behind the last layer come the slices of layer 0 once more, for the next step, as if they were layer num_layers.
  /// REQUIRES: num_layers > 1.
  bool first_again = false;

  /// What comes, one after the other.
  int64_t num_arrivals() const { return num_layers + (first_again ? 1 : 0); }
  int64_t OffsetOf(const Source& source, int64_t arrival) const {
    return source.offset_bytes + arrival % num_layers * slice_bytes;
  }
  /// Of all sources.
  bool first_is_there() const {
    return std::all_of(sources.begin(), sources.end(), [](const Source& source) { return source.first_is_there; });
  }
};

/// A step's streaming under way. Thread-safety: Arrived and Release by one thread, in the order of layers; the fences
/// are anybody's. Ownership: borrows the slots until End, or its own end. Errors: none; what could not be had is lost.
class SliceStream {
 public:
  virtual ~SliceStream() = default;
  /// Passes when the layer's slices are in their slots, or are lost.
  virtual backend::Fence Arrived(int64_t layer) = 0;
  /// Once `read` has passed, the layer's slots may be written again.
  virtual void Release(int64_t layer, const backend::Fence& read) = 0;
  /// Leases that are known to have changed hands, so far.
  virtual std::vector<kv::LeaseId> Lost() const = 0;
  /// Waits for what is under way: nobody writes to the slots any more. Returns the leases whose memory changed hands
  /// while it was copied, or whose donor did not send it: what was streamed of them is worthless; of all others it was
  /// good, and where layer num_layers - 2 was released StreamSpec::first_again has come, too. Called once.
  virtual std::vector<kv::LeaseId> End() = 0;
};

/// Hears what happens. Called by the transport's threads, one call at a time per thread; must not block and must not
/// call the transport back from within.
class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  // To a donor. Of a borrower that goes while it opens a lease OnBorrowerGone may come first.
  virtual void OnBorrowerOpened(kv::LeaseId lease) = 0;
  virtual void OnRenewal(kv::LeaseId lease, int64_t heat) = 0;
  virtual void OnReleased(kv::LeaseId lease) = 0;  // the borrower gave it back: it is fenced already
  virtual void OnBorrowerGone(
      kv::LeaseId lease) = 0;  // its end of the channel closed; the grant stands, and may be opened
  // To a borrower. Of a lease that is being opened a donor's word, or its end, may be heard before OnOpened.
  virtual void OnOpened(kv::LeaseId lease, absl::StatusOr<LeaseView> view) = 0;
  virtual void OnRenewed(kv::LeaseId lease) = 0;
  virtual void OnRevoked(kv::LeaseId lease, absl::Duration time_left) = 0;
  virtual void OnDonorGone(kv::LeaseId lease) = 0;  // its end of the channel closed; also after Fence
  /// OK: the bytes lie in the donor's memory and can be read there. FAILED_PRECONDITION: the lease was fenced;
  /// UNAVAILABLE: the channel closed before the donor answered. Never called after Close(lease) has returned.
  virtual void OnStored(Ticket ticket, absl::Status status) = 0;
};

/// Totals since the start. Units: as named.
struct TransportStats {
  int64_t stored_bytes = 0, loaded_bytes = 0;  // as a borrower
  int64_t received_bytes = 0;                  // as a donor
  absl::Duration store_time, load_time;        // that copying took, throttle included
  LoadRate load_rate;
  uint64_t borrowers_read = 0;  // as a donor: another number when a borrower has read since; means nothing else
};

/// Loads and streams end whatever a donor does: what has not come kReadPatience after it could have is lost, and so is
/// all else that is under way from that donor.
///
/// Asynchronous; stores of one lease keep their order, and a Load sees a store once OnStored said OK; each copy is
/// bounded (kMaxCopyBytes), so that Fence waits for at most one. Thread-safety: safe. Ownership: owns sockets, mappings
/// and threads; borrows the arena and `events`. Errors: as named; foreign bytes (a hostile peer) close that peer's
/// channel and do nothing else. The end of a transport fences its grants, closes its leases and joins its threads: no
/// event comes after it.
class Transport {
 public:
  static constexpr int64_t kMaxCopyBytes = 1 << 20;
  static constexpr absl::Duration kReadPatience = absl::Seconds(1);
  virtual ~Transport() = default;

  /// The value of the label `transport`, as in --transport: "shm".
  virtual const char* kind() const = 0;
  /// What peers must have in common to understand each other: the kind, the version of its messages, and that of what
  /// carries the bytes where that matters.
  virtual std::string protocol() const { return kind(); }
  /// Whether leases are mapped: then a view has a base, and may be read and stored from where it lies. Where they are
  /// not, Load and BeginStream alone bring what lies there.
  virtual bool maps() const = 0;
  /// Whether views say of slow links that they are: measured when a lease is opened. If not, none is called slow.
  virtual bool measures_links() const { return false; }
  /// Blocks of so many layers that one stream may have; more of them would be lost.
  virtual int64_t most_streamed_blocks(int64_t layers) const { return std::numeric_limits<int64_t>::max(); }
  /// The path of the channel's socket, which peers dial: by its name in the folder that they have in common.
  virtual std::string channel() const = 0;

  // Donor.
  /// Gives the range a new generation, which is the epoch, and lets the named borrower in. RESOURCE_EXHAUSTED: more
  /// leases than there are generation words.
  virtual absl::StatusOr<kv::Epoch> Grant(const GrantSpec& spec) = 0;
  virtual void SendRevoke(kv::LeaseId lease, absl::Duration time_left) = 0;
  virtual void SendRenewed(kv::LeaseId lease) = 0;
  /// Ends a grant, whatever the borrower does: changes the generation, waits for at most one copy of our own thread,
  /// refuses later stores, closes the channel. When it returns the memory is the owner's, but for what is said of
  /// exchanges(). Unknown leases: nothing.
  virtual void Fence(kv::LeaseId lease) = 0;

  // Who was shown memory may map it for as long as it likes: a fence says that what is read there is worth nothing, and
  // takes nothing away. These see to it that the owner's next bytes are elsewhere. They take as long as memory takes to
  // be had: one thread calls them, for which nobody waits who is in a hurry (coordinator::MemoryExchange).
  /// Whether leases get and leave memory of their own (--remap_on_return). If not, neither is called.
  virtual bool exchanges() const { return false; }
  /// Before Grant. REQUIRES: the part is in use by nobody, from here on to Exchange. An error: it cannot be lent.
  /// INVALID_ARGUMENT: it is not whole pages.
  virtual absl::Status PrepareToLend(int64_t offset_bytes, int64_t bytes) { return absl::OkStatus(); }
  /// After the Fence of a lease, and where none was granted after all. Once it is OK the part is its owner's, and what
  /// is written there nobody else sees. An error: until it is called again and succeeds nobody may touch the part.
  virtual absl::Status Exchange(int64_t offset_bytes, int64_t bytes) { return absl::OkStatus(); }

  // Borrower.
  /// -> OnOpened, however long the donor takes; Close ends the wait. REQUIRES: the lease is not open; Close it before
  /// it is opened again, also after OnOpened told an error or OnDonorGone.
  virtual void Open(const OpenSpec& spec) = 0;
  /// `heat`: lease::Donor::Renewal's.
  virtual void SendRenewal(kv::LeaseId lease, int64_t heat) = 0;
  /// Gives the lease back. REQUIRES: no Load or read of it is under way, no Store will follow. Stores that the donor has
  /// not heard of by then it never hears of; Abandon answers them, or the channel's end.
  virtual void SendRelease(kv::LeaseId lease) = 0;
  /// For a lease that is lost: unfinished stores, and later ones, are answered with an error though the donor may never
  /// answer; after each OnStored `from` is its owner's. Loads and streams wait for that donor no longer, and name the
  /// lease as lost. What is mapped stays mapped. Unknown leases: nothing.
  virtual void Abandon(kv::LeaseId lease) = 0;
  /// Unmaps and closes. REQUIRES: nobody reads the view any more. Unfinished stores are forgotten.
  virtual void Close(kv::LeaseId lease) = 0;
  /// Begins when `after` has passed. What lies at `from` must not change until OnStored. REQUIRES: of each piece, 0 <
  /// bytes <= store_bytes, inside the lease.
  virtual std::vector<Ticket> Store(std::span<const StorePiece> pieces, const backend::Fence& after) = 0;
  /// Copies pieces of leases into local memory, where it begins to write when `after` has passed. `to` belongs to the
  /// transport until Await has returned.
  virtual Ticket Load(std::vector<LoadPiece> pieces, const backend::Fence& after) = 0;
  /// Waits for a Load, once. Returns the leases whose memory changed hands while it was copied, or whose donor did not
  /// send it: those pieces are worthless, all others are good for ever, whatever happens to their leases later.
  virtual std::vector<kv::LeaseId> Await(Ticket load) = 0;
  /// Declares all that a step streams, at once: layers 0 and 1 are on their way when it returns, and written when
  /// `after` has passed; others follow as slots are released. One stream at a time; it ends before the transport does.
  virtual std::unique_ptr<SliceStream> BeginStream(StreamSpec spec, const backend::Fence& after) = 0;

  /// The loop asks before and after each step: no Fence waits for it, and it costs no more with each lease.
  virtual TransportStats stats() const = 0;
  /// Bytes a second that come out of leases at best, by loads and streams or read `in_place`: as the link is configured,
  /// else as it was measured. None: not measured yet, or leases are read as own memory is, over no link.
  virtual std::optional<double> read_rate(bool in_place) const { return stats().load_rate.bytes_per_second(); }

  /// Fences all grants, closes all leases and joins: no event comes any more. REQUIRES: nobody is in Await, nobody reads
  /// a view, no Store or Load follows. The socket goes with this object. A second time it does nothing.
  virtual void Stop() = 0;
};

}  // namespace swiftcache::engine::transport
