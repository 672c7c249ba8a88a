// SPDX-License-Identifier: Apache-2.0
#include "common/log/log.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/log/json_line.h"
#include "common/log/line_writer.h"

namespace swiftcache {
namespace {

// glog itself is a process-wide thing.
struct Identity {
  absl::Mutex mutex;
  std::string engine ABSL_GUARDED_BY(mutex);
  // Written before there are threads.
  std::string program, model;
  bool json = false;
};

// Never destroyed: threads that outlive main may log to the end.
Identity& ProcessIdentity() {
  static Identity* const identity = new Identity;
  return *identity;
}

std::string EngineName() {
  Identity& process = ProcessIdentity();
  absl::MutexLock lock(&process.mutex);
  return process.engine;
}

std::atomic<LogLevel> log_level = LogLevel::kInfo;

std::string Shown(std::string_view value) {
  const std::string escaped = absl::CHexEscape(absl::string_view(value.data(), value.size()));
  return value.find(' ') == value.npos ? escaped : absl::StrCat("\"", escaped, "\"");
}
std::string Shown(int64_t value) { return absl::StrCat(value); }
std::string Shown(double value) { return absl::StrCat(value); }

bool Logged(google::LogSeverity severity) {
  switch (log_level.load(std::memory_order_relaxed)) {
    case LogLevel::kError:
      return severity >= google::GLOG_ERROR;
    case LogLevel::kWarning:
      return severity >= google::GLOG_WARNING;
    case LogLevel::kInfo:
    case LogLevel::kVerbose:
      return true;
  }
  return true;
}

std::string FormatJson(google::LogSeverity severity, std::string_view file, int line, absl::Time time,
                       std::string_view message) {
  const Identity& process = ProcessIdentity();
  const std::string engine = EngineName();
  return FormatJsonLine({.time = time,
                         .severity = google::GetLogSeverityName(severity),
                         .file = file,
                         .line = line,
                         .thread = gettid(),
                         .program = process.program,
                         .engine = engine,
                         .model = process.model,
                         .message = message});
}

std::string FormatJsonWarning(const std::string& text) {
  return FormatJson(google::GLOG_WARNING, "line_writer.cc", __LINE__, absl::Now(), text);
}

constexpr absl::Duration kPatienceAtExit = absl::Seconds(1);  // with standard error
constexpr unsigned kSecondsToDie = 3;                         // of a process that a CHECK ends: message and stack

// glog's lines, as it would print them or as JSON, on their way to standard error.
class StderrSink final : public google::LogSink {
 public:
  explicit StderrSink(bool json)
      : json_(json), writer_({.fd = STDERR_FILENO, .format_warning = json ? FormatJsonWarning : FormatWarning}) {}

  void send(google::LogSeverity severity, const char* /*full_filename*/, const char* file, int line,
            const google::LogMessageTime& time, const char* message, size_t length) override {
    if (!Logged(severity)) return;
    std::string text =
        json_ ? FormatJson(severity, file, line, absl::FromTimeT(time.timestamp()) + absl::Microseconds(time.usec()),
                           std::string_view(message, length))
              : absl::StrCat(ToString(severity, file, line, time, message, length), "\n");
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
  const bool json_;
  LineWriter writer_;
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

const char* Name(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kVerbose:
      return "verbose";
  }
  return "info";
}

void InitLogging(const LogOptions& options) {
  NameEngine(options.engine);
  Identity& process = ProcessIdentity();
  process.program = std::filesystem::path(options.program).filename();
  process.model = options.model;
  process.json = options.json;
  log_level = options.level;
  OpenStandardDescriptors();
  FLAGS_logtostderr = false;
  FLAGS_stderrthreshold = google::NUM_SEVERITIES;
  for (int severity = 0; severity < google::NUM_SEVERITIES; ++severity) google::SetLogDestination(severity, "");
  static const std::string program = options.program;  // glog keeps the pointer
  google::InitGoogleLogging(program.c_str());
  stderr_sink = new StderrSink(options.json);
  google::AddLogSink(stderr_sink);
  std::atexit([] { FlushLog(kPatienceAtExit); });
}

// A warning, at the more talkative of both levels, is never left out.
void SetLogLevel(LogLevel level) {
  const LogLevel before = log_level.load();
  log_level = std::max(before, level);
  LOG(WARNING) << "log level: " << Name(level) << ", was " << Name(before);
  log_level = level;
}

LogLevel CurrentLogLevel() { return log_level; }

void PrintBehindLog(const std::string& line) {
  if (stderr_sink == nullptr) {
    std::cerr << line << std::endl;
    return;
  }
  const bool json = ProcessIdentity().json;
  stderr_sink->writer().WriteAnyway(json ? FormatJson(google::GLOG_ERROR, "log.cc", __LINE__, absl::Now(), line)
                                         : absl::StrCat(line, "\n"));
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
  const Identity& process = ProcessIdentity();
  out << LogField{"request_id", tag.request_id} << LogField{"trace", tag.traceparent};
  if (process.json) return out << LogField{"model", tag.model};
  return out << LogField{"engine", EngineName()}
             << LogField{"model", tag.model.empty() ? std::string_view(process.model) : tag.model};
}

std::ostream& operator<<(std::ostream& out, const LogField& field) {
  const auto* text = std::get_if<std::string_view>(&field.value);
  if (text != nullptr && text->empty()) return out;
  if (ProcessIdentity().json) return out << MarkField(field.name, field.value);
  return out << field.name << '=' << std::visit([](const auto& value) { return Shown(value); }, field.value) << ' ';
}

}  // namespace swiftcache
