// SPDX-License-Identifier: Apache-2.0
#include "common/log/line_writer.h"

#include <errno.h>
#include <glog/logging.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace swiftcache {
namespace {

constexpr absl::Duration kLeaveAfter = absl::Milliseconds(100);  // what the destructor grants the descriptor

std::string Missing(int64_t lines) {
  return absl::StrCat(lines, lines == 1 ? " line is" : " lines are",
                      " missing here: nobody read the log, or what it is written to failed");
}

bool WaitUntilReady(int fd) {
  pollfd wanted{.fd = fd, .events = POLLOUT, .revents = 0};
  while (poll(&wanted, 1, -1) < 0) {
    if (errno != EINTR) return false;
  }
  return (wanted.revents & (POLLERR | POLLNVAL)) == 0;
}

// Returns how many bytes of `text` were written before an error. Writes in pieces which a pipe that is ready accepts
// without blocking.
size_t WriteAll(int fd, std::string_view text) {
  size_t written = 0;
  while (written < text.size() && WaitUntilReady(fd)) {
    const ssize_t n = write(fd, text.data() + written, std::min<size_t>(text.size() - written, PIPE_BUF));
    if (n > 0) written += n;
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) break;
  }
  return written;
}

}  // namespace

std::string FormatWarning(const std::string& text) {
  return absl::StrCat(google::LogSink::ToString(google::GLOG_WARNING, "line_writer.cc", __LINE__,
                                                google::LogMessageTime(), text.data(), text.size()),
                      "\n");
}

class LineWriter::Queue {
 public:
  explicit Queue(const Options& options) : options_(options) {}

  void Add(std::string line, bool anyway) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Flush(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithDeadline(absl::Condition(this, &Queue::IdleLocked), deadline);
  }
  /// What is in the queue is still written. True: within the time that a destructor waits.
  bool Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    return mutex_.AwaitWithTimeout(absl::Condition(&ended_), kLeaveAfter);
  }
  int64_t lost() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return lost_;
  }
  /// The thread's work, until the queue is closed and empty.
  void Run() {
    while (const std::optional<Batch> batch = Take()) Wrote(*batch, WriteAll(options_.fd, batch->text));
  }

 private:
  struct Batch {
    std::string text;
    size_t head = 0;    // of it: what is said of lines that are missing
    int64_t lines = 0;  // behind the head
  };

  bool IdleLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return bytes_ == 0; }
  bool AwakeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !lines_.empty(); }
  std::optional<Batch> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  void Wrote(const Batch& batch, size_t written) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // of these and of the batch that is being written
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;       // since the start
  int64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;    // since the queue was full: lines behind all of `lines_`
  int64_t unwritten_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last write that succeeded: lines before all of `lines_`
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;       // what is written ends amid a line
  bool closed_ ABSL_GUARDED_BY(mutex_) = false, ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Once full, the queue accepts nothing until half of it is free, so that one line reports all that are missing.
void LineWriter::Queue::Add(std::string line, bool anyway) {
  const auto size = static_cast<int64_t>(line.size());
  absl::MutexLock lock(&mutex_);
  if (!anyway && (refused_ > 0 || bytes_ + size > options_.max_bytes)) {
    ++refused_;
    ++lost_;
    return;
  }
  bytes_ += size;
  lines_.push_back(std::move(line));
}

// As many whole lines as a pipe takes at once, so that they are not mixed with those of other writers; at least one.
std::optional<LineWriter::Queue::Batch> LineWriter::Queue::Take() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &Queue::AwakeLocked));
  ended_ = lines_.empty();
  if (ended_) return std::nullopt;
  Batch batch;
  if (unwritten_ > 0) batch.text = absl::StrCat(cut_ ? "\n" : "", options_.format_warning(Missing(unwritten_)));
  batch.head = batch.text.size();
  do {
    batch.text += lines_.front();
    ++batch.lines;
    lines_.pop_front();
  } while (!lines_.empty() && batch.text.size() + lines_.front().size() <= PIPE_BUF);
  return batch;
}

void LineWriter::Queue::Wrote(const Batch& batch, size_t written) {
  absl::MutexLock lock(&mutex_);
  bytes_ -= static_cast<int64_t>(batch.text.size() - batch.head);
  if (written > 0) cut_ = batch.text[written - 1] != '\n';
  if (written >= batch.head) unwritten_ = 0;
  if (written < batch.text.size()) {
    const auto from = batch.text.begin() + static_cast<int64_t>(batch.head);
    const auto to = batch.text.begin() + static_cast<int64_t>(std::max(batch.head, written));
    const int64_t lines = batch.lines - std::count(from, to, '\n');
    unwritten_ += lines;
    lost_ += lines;
  }
  if (refused_ > 0 && bytes_ <= options_.max_bytes / 2) {
    lines_.push_back(options_.format_warning(Missing(std::exchange(refused_, 0))));
    bytes_ += static_cast<int64_t>(lines_.back().size());
  }
}

LineWriter::LineWriter(const Options& options) : queue_(std::make_shared<Queue>(options)) {
  thread_ = std::thread([queue = queue_] {
    pthread_setname_np(pthread_self(), "log");
    sigset_t all;  // above all SIGPIPE: a reader that has gone is an error like others
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    queue->Run();
  });
}

LineWriter::~LineWriter() {
  if (queue_->Close()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void LineWriter::Write(std::string line) { queue_->Add(std::move(line), false); }

void LineWriter::WriteAnyway(std::string line) { queue_->Add(std::move(line), true); }

bool LineWriter::Flush(absl::Time deadline) { return queue_->Flush(deadline); }

int64_t LineWriter::lost() const { return queue_->lost(); }

}  // namespace swiftcache
