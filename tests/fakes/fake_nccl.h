// SPDX-License-Identifier: Apache-2.0
// NCCL without NCCL: ranks in one process, whose groups meet on the streams of their fake drivers. A receive copies what
// the matching send has; each blocks its stream until the other is there, or its own communicator is aborted.
//
//   FakeNccl nccl(driver);
//   nccl.FailAt(12);                              // the twelfth call from here on fails, and no other
//   nccl.Mute();                                  // its groups stay out of their streams
//   ... EXPECT_EQ(nccl.Misuse(), ""); EXPECT_EQ(nccl.num_communicators(), 0);
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/transport/nccl/nccl_api.h"
#include "tests/fakes/fake_cuda_driver.h"

namespace swiftcache::engine::transport::nccl {

/// One engine's NCCL; those of one process find each other by unique id. As with the real one, a group is in its stream
/// only once it has settled, and the other rank's abort is not noticed. What no honest caller does is noted in Misuse.
/// Thread-safety: safe. Ownership: borrows the driver.
class FakeNccl final : public NcclApi {
 public:
  explicit FakeNccl(backend::cuda::FakeCudaDriver& driver, int settle_polls = 2, int version = 23203)
      : driver_(driver), settle_polls_(settle_polls), version_(version) {}

  /// The n-th call from now on, counted from 1, fails, once; Abort cannot.
  void FailAt(int64_t nth);
  bool HasFailed() const;
  /// From now on nothing settles.
  void Mute();
  void Unmute();
  /// The first group of each direction takes so long to settle: the ranks connect only then.
  void ConnectIn(absl::Duration time);
  // Of the following each returns when what it replaces is not running any more.
  /// Called on the stream before each group of sends is read, but for a communicator's first.
  void BeforeSends(std::function<void()> act);
  /// Called by who aborts a communicator, before it is, and by who gives it a group.
  void BeforeAborts(std::function<void()> act);
  void BeforeTransfers(std::function<void()> act);
  std::string Misuse() const;
  /// What the other rank of a test did.
  void ForgetMisuse();
  int64_t num_communicators() const;  // that live
  int64_t num_made() const;
  int64_t num_groups() const;  // that were given, but for those that connect

  int version() const override { return version_; }
  absl::StatusOr<NcclUniqueId> CreateUniqueId() override;
  absl::StatusOr<NcclComm> Init(const NcclUniqueId& id, int rank) override;
  absl::StatusOr<bool> Settled(NcclComm comm) override;
  absl::Status Transfer(NcclComm comm, NcclDirection direction, int peer, std::span<const NcclRun> runs,
                        backend::cuda::Stream stream) override;
  void Abort(NcclComm comm) override;

 private:
  struct Group {
    NcclDirection direction;
    std::vector<NcclRun> runs;
    bool connects = false;
    bool there = false, done = false;
  };
  struct Meeting;  // two ranks of one id
  struct Comm {
    std::shared_ptr<Meeting> meeting;
    int rank = 0;
    int polls = 0;  // until it settles
    absl::Time settles_at = absl::InfinitePast();
    std::set<NcclDirection> connected;
    bool settled = false, failed = false;
    std::shared_ptr<Group> given;  // not yet in the stream
    backend::cuda::Stream stream{};
  };
  struct Hook {
    std::function<void()> act;
    int running = 0;
  };
  absl::Status Count(const char* call);
  void Set(Hook& hook, std::function<void()> act);
  void Call(Hook& hook);
  void Note(const std::string& misuse) { misuse_ += misuse + "\n"; }
  absl::Status Launch(Comm& comm);
  void RunGroup(Meeting& meeting, int rank, size_t index, const std::shared_ptr<Group>& group);
  static bool Match(const Group& a, const Group& b);

  backend::cuda::FakeCudaDriver& driver_;
  const int settle_polls_, version_;
  mutable std::mutex mutex_;
  int64_t calls_until_failure_ = 0;
  bool has_failed_ = false, muted_ = false;
  absl::Duration connect_in_ = absl::ZeroDuration();
  Hook before_sends_, before_aborts_, before_transfers_;
  std::condition_variable hook_returned_;
  std::string misuse_;
  std::map<uint64_t, Comm> comms_;
  uint64_t next_comm_ = 1;
  int64_t num_made_ = 0, num_groups_ = 0;
};

}  // namespace swiftcache::engine::transport::nccl
