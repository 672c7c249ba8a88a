// SPDX-License-Identifier: Apache-2.0
// Tells ThreadSanitizer about absl::Mutex, absl::CondVar and absl::Notification: Debian's Abseil is not instrumented,
// so that without this every pair of threads that a mutex orders looks like a race. Linked by the tsan preset only,
// which passes --wrap for each symbol below: calls from our code come here, and go on to the real function.
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

// WRAP(symbol, result, parameters, arguments, before, after): `self` is the object.
#define WRAP(symbol, result, parameters, arguments, before, after) \
  extern "C" result __real_##symbol parameters;                    \
  extern "C" result __wrap_##symbol parameters {                   \
    before;                                                        \
    struct After {                                                 \
      void* self;                                                  \
      ~After() { after; }                                          \
    } after_call{self};                                            \
    return __real_##symbol arguments;                              \
  }

namespace {

using absl::Condition;
using absl::Duration;
using absl::Time;

/// A condition that is evaluated, by whichever thread unlocks, as the mutex's holder.
struct Traced {
  void* mutex;
  const Condition& condition;
  bool Eval() const {
    __tsan_acquire(mutex);
    const bool holds = condition.Eval();
    __tsan_release(mutex);
    return holds;
  }
};

// Abseil's own search for lock cycles keeps its graph in memory that ThreadSanitizer sees only in part.
[[maybe_unused]] const bool kNoCycleSearch = [] {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return true;
}();

}  // namespace

// glog asks libc for the time zone with every line; libc's own lock around that is not instrumented either.
// absl::Status counts its references inside Debian's library too: the last holder's delete looks like a race.
extern "C" const char* __tsan_default_suppressions() {
  return "race:tzset_internal\n"
         "race:absl::debian3::Status::UnrefNonInlined\n"
         "race:absl/status/status.h\n";
}

#define TRACED Condition(&traced, &Traced::Eval)
#define TRACE \
  const Traced traced { self, condition }

#define NOTHING static_cast<void>(self)
#define ACQUIRE __tsan_acquire(self)
#define RELEASE __tsan_release(self)

WRAP(_ZN4absl7debian35Mutex4LockEv, void, (void* self), (self), NOTHING, ACQUIRE)
WRAP(_ZN4absl7debian35Mutex6UnlockEv, void, (void* self), (self), RELEASE, NOTHING)
WRAP(_ZN4absl7debian35Mutex7TryLockEv, bool, (void* self), (self), NOTHING, ACQUIRE)
WRAP(_ZN4absl7debian35Mutex10ReaderLockEv, void, (void* self), (self), NOTHING, ACQUIRE)
WRAP(_ZN4absl7debian35Mutex12ReaderUnlockEv, void, (void* self), (self), RELEASE, NOTHING)
WRAP(_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE, void, (void* self, const Condition& condition), (self, TRACED),
     TRACE;
     RELEASE, ACQUIRE)
WRAP(_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE, bool,
     (void* self, const Condition& condition, Duration timeout), (self, TRACED, timeout), TRACE;
     RELEASE, ACQUIRE)
WRAP(_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE, bool,
     (void* self, const Condition& condition, Time deadline), (self, TRACED, deadline), TRACE;
     RELEASE, ACQUIRE)
WRAP(_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE, void, (void* self, const Condition& condition), (self, TRACED),
     TRACE, ACQUIRE)
WRAP(_ZN4absl7debian35Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE, bool,
     (void* self, const Condition& condition, Duration timeout), (self, TRACED, timeout), TRACE, ACQUIRE)
WRAP(_ZN4absl7debian35Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE, bool,
     (void* self, const Condition& condition, Time deadline), (self, TRACED, deadline), TRACE, ACQUIRE)
WRAP(_ZN4absl7debian312Notification6NotifyEv, void, (void* self), (self), RELEASE, NOTHING)
WRAP(_ZNK4absl7debian312Notification19WaitForNotificationEv, void, (void* self), (self), NOTHING, ACQUIRE)
WRAP(_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE, bool,
     (void* self, Duration timeout), (self, timeout), NOTHING, ACQUIRE)
WRAP(_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE, bool, (void* self, Time deadline),
     (self, deadline), NOTHING, ACQUIRE)

// A condition variable gives its mutex away while it waits.
#define WRAP_WAIT(symbol, result, parameters, arguments) \
  extern "C" result __real_##symbol parameters;          \
  extern "C" result __wrap_##symbol parameters {         \
    __tsan_release(mutex);                               \
    struct After {                                       \
      void* mutex;                                       \
      ~After() { __tsan_acquire(mutex); }                \
    } after_call{mutex};                                 \
    return __real_##symbol arguments;                    \
  }

WRAP_WAIT(_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE, void, (void* self, void* mutex), (self, mutex))
WRAP_WAIT(_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE, bool,
          (void* self, void* mutex, Duration timeout), (self, mutex, timeout))
WRAP_WAIT(_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE, bool,
          (void* self, void* mutex, Time deadline), (self, mutex, deadline))
