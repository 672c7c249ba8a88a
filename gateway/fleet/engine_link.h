// SPDX-License-Identifier: Apache-2.0
// The gateway's connection to one engine process. Knows the requests under way there, and tells them when the engine is
// lost.
//
//   EngineLink::InFlight request(link, attempt);  // under way until destroyed
//   link->client().Generate(request, attempt);
//   ...
//   link->MarkLost(absl::UnavailableError("it died"));  // attempt->OnLost
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gateway/fleet/engine_client.h"

namespace swiftcache::gateway::fleet {

/// A request under way on an engine. OnLost is called from any thread, with no lock held, perhaps more than once; it
/// must not block.
class LossObserver {
 public:
  virtual ~LossObserver() = default;
  virtual void OnLost(const absl::Status& why) = 0;
};

/// Thread-safety: safe. Ownership: owns the client; shared by the table and by requests under way, which may outlive
/// the engine's place in the table. Errors: none. Units: requests.
class EngineLink {
 public:
  EngineLink(std::string name, std::string model_name, std::unique_ptr<EngineClient> client)
      : name_(std::move(name)), model_name_(std::move(model_name)), client_(std::move(client)) {}
  EngineLink(const EngineLink&) = delete;
  EngineLink& operator=(const EngineLink&) = delete;

  const std::string& name() const { return name_; }
  const std::string& model_name() const { return model_name_; }
  EngineClient& client() const { return *client_; }
  int64_t in_flight() const ABSL_LOCKS_EXCLUDED(mutex_);

  /// Tells every request under way that its engine does not answer any more, and each that is added before ClearLost: a
  /// request that picked the engine a moment before must not wait for ever.
  void MarkLost(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  void ClearLost() ABSL_LOCKS_EXCLUDED(mutex_);

  /// How a request there ended. UNAVAILABLE is a failure of the engine: it may be dead, or end, before the broker tells of
  /// it. So is INTERNAL from the second on without an OK between: one may be the request's own, but an engine that fails
  /// each at once is never loaded, and would be sent nearly all of them.
  void NoteEnd(const absl::Status& status, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Time last_failure() const ABSL_LOCKS_EXCLUDED(mutex_);  // InfinitePast: none was noted

  /// One request under way; ends with its destruction.
  class InFlight {
   public:
    InFlight() = default;
    /// `observer` is told of a loss; at once if the link is lost already.
    explicit InFlight(std::shared_ptr<EngineLink> link, const std::weak_ptr<LossObserver>& observer = {})
        : link_(std::move(link)), id_(link_->Enter(observer)) {}
    InFlight(InFlight&&) = default;
    InFlight& operator=(InFlight&& other) noexcept {
      Release();
      link_ = std::move(other.link_);
      id_ = other.id_;
      return *this;
    }
    ~InFlight() { Release(); }
    void Release() {
      if (link_ != nullptr) link_->Leave(id_);
      link_.reset();
    }

   private:
    std::shared_ptr<EngineLink> link_;
    int64_t id_ = 0;
  };

 private:
  int64_t Enter(const std::weak_ptr<LossObserver>& observer) ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave(int64_t id) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string name_;
  const std::string model_name_;
  const std::unique_ptr<EngineClient> client_;
  mutable absl::Mutex mutex_;
  std::map<int64_t, std::weak_ptr<LossObserver>> under_way_ ABSL_GUARDED_BY(mutex_);
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_failure_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;  // INTERNAL, and no OK since
};

}  // namespace swiftcache::gateway::fleet
