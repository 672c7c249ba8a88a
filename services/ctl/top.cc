// SPDX-License-Identifier: Apache-2.0
// swiftcachectl top: the cluster as it changes: memory, leases, hits.
#include <grpcpp/client_context.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "services/ctl/broker_connection.h"
#include "services/ctl/cluster_table.h"
#include "services/ctl/commands.h"
#include "services/ctl/complaint.h"
#include "services/ctl/json_output.h"
#include "services/ctl/terminal.h"

namespace swiftcache::services::ctl {
namespace {

constexpr absl::Duration kFrame = absl::Milliseconds(250);  // no faster than people read
constexpr absl::Duration kIdleFrame = absl::Seconds(1);     // at least so often, though nothing has changed
constexpr char kClearScreen[] = "\033[H\033[2J";

constexpr char kColumns[] =
    "Columns:\n"
    "  OWN           KV memory of the engine: USED, CACHED, LENT and free together\n"
    "  USED, CACHED  of OWN: held by requests now; held by the prefix cache alone, free on demand\n"
    "  LENT          of OWN: on lease to other engines, offered leases and those being taken back included\n"
    "  RESERVE       of OWN: never lent (--lend_reserve); -: nothing; all: it does not lend (--lend=false)\n"
    "  BORROWED      on lease from other engines, beside OWN; -: it does not borrow (--borrow=false)\n"
    "  LIMIT         what all engines of its model may borrow together (lease limit); -: no limit\n"
    "  HIT           share of all prompt tokens since the engine's start that were found in OWN (LOCAL), BORROWED "
    "(DONOR)\n"
    "  RECLAIMS      leases taken back since the engine's start, for whatever reason but its own ordered end;\n"
    "                LAST: from the revocation to the memory";

struct TopFlags {
  bool leases = false;
  int64_t frames = 0;  // 0: until interrupted
  std::shared_ptr<std::string> output;
};

void Draw(const std::string& broker, const ClusterTable& cluster, const TopFlags& flags) {
  if (OnTerminal()) std::cout << kClearScreen;
  std::cout << Strong(absl::StrCat("broker ", broker)) << ": " << cluster.Summary() << "\n";
  std::cout << WithoutControls(cluster.ShowEngines());
  if (flags.leases && !cluster.leases().empty()) std::cout << "\n" << WithoutControls(cluster.ShowLeases());
  std::cout << std::flush;
}

// Follows the broker in a thread of its own. Thread-safety: safe.
class Follower {
 public:
  explicit Follower(const std::string& broker) : door_(broker), thread_([this] { Work(); }) {}
  ~Follower() {
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
      if (context_ != nullptr) context_->TryCancel();
    }
    thread_.join();
  }
  // The tables, as soon as they have changed since the last call, or after `timeout`; the first call waits for tables.
  // Where the stream has ended: why.
  absl::StatusOr<ClusterTable> Next(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &Follower::ReadyLocked),
                            has_tables_ ? timeout : absl::InfiniteDuration());
    if (!changed_ && end_.has_value()) return *end_;
    changed_ = false;
    return cluster_;
  }
  // Until the stream ends, at most so long.
  void Pause(absl::Duration length) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &Follower::EndedLocked), length);
  }

 private:
  // A broker drops whoever is too slow for what changes at once; another stream begins with the tables as they are.
  void Work() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Status end;
    do {
      end = FollowOnce();
    } while (absl::IsResourceExhausted(end) && !WaitStopped(kFrame));
    absl::MutexLock lock(&mutex_);
    end_ = end;
  }
  absl::Status FollowOnce() ABSL_LOCKS_EXCLUDED(mutex_) {
    grpc::ClientContext context;
    SetContext(&context);
    absl::Status end = door_.Follow(context, [this](const v1::WatchResponse& news) {
      absl::MutexLock lock(&mutex_);
      cluster_.Apply(news);
      changed_ = has_tables_ = true;
    });
    SetContext(nullptr);
    return end;
  }
  void SetContext(grpc::ClientContext* context) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    context_ = context;
    if (context != nullptr && stopped_) context->TryCancel();
  }
  bool WaitStopped(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&stopped_), timeout);
  }
  bool EndedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); }
  bool ReadyLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return changed_ || EndedLocked(); }

  BrokerConnection door_;
  absl::Mutex mutex_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the stream under way
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  ClusterTable cluster_ ABSL_GUARDED_BY(mutex_);
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;     // since the last Next()
  bool has_tables_ ABSL_GUARDED_BY(mutex_) = false;  // the snapshot has come
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses everything above
};

absl::Status RunTop(const Addresses& addresses, const TopFlags& flags) {
  Follower follower(addresses.broker);
  for (int64_t drawn = 1;; ++drawn) {
    ASSIGN_OR_RETURN(const ClusterTable cluster, follower.Next(kIdleFrame - kFrame));
    if (*flags.output == kJson) {
      std::cout << TopJson(addresses.broker, cluster) << std::endl;
    } else {
      Draw(addresses.broker, cluster, flags);
    }
    if (drawn == flags.frames || !std::cout) return absl::OkStatus();
    follower.Pause(kFrame);
  }
}

}  // namespace

void AddTop(CLI::App& app, const Addresses& addresses, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("top", "Shows memory, leases and hits of all engines as they change")->fallthrough();
  command->footer(kColumns);
  auto flags = std::make_shared<TopFlags>();
  command->add_flag("--leases", flags->leases, "a line for every lease too");
  command->add_option("--frames", flags->frames, "ends after so many tables; 0: until interrupted")
      ->check(NumberIn(0, 1'000'000))
      ->capture_default_str();
  flags->output = AddOutputFlag(*command);
  command->callback(
      [&addresses, &chosen, flags] { chosen = [&addresses, flags] { return RunTop(addresses, *flags); }; });
}

}  // namespace swiftcache::services::ctl
