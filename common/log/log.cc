// SPDX-License-Identifier: Apache-2.0
#include "common/log/log.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/log/line_writer.h"

namespace swiftcache {
namespace {

// glog itself is a process-wide thing.
struct Identity {
  absl::Mutex mutex;
  std::string engine ABSL_GUARDED_BY(mutex);
  std::string model;  // written before there are threads
};

// Never destroyed: threads that outlive main may log to the end.
Identity& ProcessIdentity() {
  static Identity* const identity = new Identity;
  return *identity;
}

void Part(std::ostream& out, const char* key, std::string_view value) {
  if (!value.empty()) out << key << '=' << absl::CHexEscape(absl::string_view(value.data(), value.size())) << ' ';
}

constexpr absl::Duration kPatienceAtExit = absl::Seconds(1);  // with standard error
constexpr unsigned kSecondsToDie = 3;                         // of a process that a CHECK ends: message and stack

// glog's lines, as it would print them, on their way to standard error.
class StderrSink final : public google::LogSink {
 public:
  void send(google::LogSeverity severity, const char* /*full_filename*/, const char* file, int line,
            const google::LogMessageTime& time, const char* message, size_t length) override {
    std::string text = absl::StrCat(ToString(severity, file, line, time, message, length), "\n");
    if (severity != google::GLOG_FATAL) return writer_.Write(std::move(text));
    writer_.WriteAnyway(std::move(text));
    fatal_ = true;
  }
  // glog writes the stack of a fatal line itself, straight to standard error, and aborts: behind what was logged
  // before, and not for ever.
  void WaitTillSent() override {
    if (!fatal_) return;
    signal(SIGALRM, [](int) { abort(); });
    alarm(kSecondsToDie);
    writer_.Flush(absl::Now() + kPatienceAtExit);
  }
  LineWriter& writer() { return writer_; }

 private:
  LineWriter writer_{{.fd = STDERR_FILENO}};
  std::atomic<bool> fatal_ = false;
};

// Never destroyed: threads that outlive main may log to the end.
StderrSink* stderr_sink = nullptr;

// Otherwise the next file to be opened would become standard error, and get the log.
void OpenStandardDescriptors() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd >= 0) close(fd);
}

}  // namespace

void InitLogging(const LogOptions& options) {
  NameEngine(options.engine);
  ProcessIdentity().model = options.model;
  OpenStandardDescriptors();
  FLAGS_v = options.verbose ? 1 : 0;
  FLAGS_logtostderr = false;
  FLAGS_stderrthreshold = google::NUM_SEVERITIES;
  for (int severity = 0; severity < google::NUM_SEVERITIES; ++severity) google::SetLogDestination(severity, "");
  static const std::string program = options.program;  // glog keeps the pointer
  google::InitGoogleLogging(program.c_str());
  stderr_sink = new StderrSink;
  google::AddLogSink(stderr_sink);
  std::atexit([] { FlushLog(kPatienceAtExit); });
}

void PrintBehindLog(const std::string& line) {
  if (stderr_sink == nullptr) {
    std::cerr << line << std::endl;
  } else {
    stderr_sink->writer().WriteAnyway(absl::StrCat(line, "\n"));
  }
}

bool FlushLog(absl::Duration timeout) {
  return stderr_sink == nullptr || stderr_sink->writer().Flush(absl::Now() + timeout);
}

int64_t LogLinesLost() { return stderr_sink == nullptr ? 0 : stderr_sink->writer().lost(); }

void NameEngine(const std::string& engine) {
  absl::MutexLock lock(&ProcessIdentity().mutex);
  ProcessIdentity().engine = engine;
}

std::ostream& operator<<(std::ostream& out, const RequestTag& tag) {
  Part(out, "request_id", tag.request_id);
  Part(out, "trace", tag.traceparent);
  Identity& process = ProcessIdentity();
  {
    absl::MutexLock lock(&process.mutex);
    Part(out, "engine", process.engine);
  }
  Part(out, "model", tag.model.empty() ? std::string_view(process.model) : tag.model);
  return out;
}

}  // namespace swiftcache
