// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace swiftcache::services::ctl {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(20);

// Of the child, between fork and exec: nothing that takes a lock.
[[noreturn]] void Become(const char* binary, char* const* arguments, int output, int log, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);  // it ended before the line above
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(output, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execv(binary, arguments);
  dprintf(STDERR_FILENO, "%s cannot be started: %s\n", binary, strerror(errno));
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(std::string name, const std::string& binary,
                                                                  const std::vector<std::string>& flags,
                                                                  const std::string& folder) {
  const std::string log = absl::StrCat(folder, "/", name, ".log");
  std::vector<char*> arguments = {const_cast<char*>(binary.c_str())};
  for (const std::string& flag : flags) arguments.push_back(const_cast<char*>(flag.c_str()));
  arguments.push_back(nullptr);
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "a pipe to a server");
  const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const pid_t parent = getpid(), pid = file < 0 ? -1 : fork();
  const int error = errno;
  if (pid == 0) Become(binary.c_str(), arguments.data(), pipe[1], file, parent);
  close(pipe[1]);
  if (file >= 0) close(file);
  if (pid < 0) {
    close(pipe[0]);
    return absl::ErrnoToStatus(error, absl::StrCat("starting ", binary, " with its log in ", log));
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(std::move(name), log, pid, pipe[0]));
}

ChildProcess::~ChildProcess() {
  if (!Reap(WNOHANG)) {
    kill(pid_, SIGKILL);
    (void)Reap(0);
  }
  close(output_);
}

// True: it has ended.
bool ChildProcess::Reap(int flags) {
  int status = 0;
  if (!end_ && waitpid(pid_, &status, flags) == pid_) end_ = status;
  return end_.has_value();
}

absl::Status ChildProcess::Check() {
  if (!Reap(WNOHANG)) return absl::OkStatus();
  const std::string how = WIFSIGNALED(*end_) ? absl::StrCat("by signal ", WTERMSIG(*end_))
                                             : absl::StrCat("with exit code ", WEXITSTATUS(*end_));
  return absl::AbortedError(absl::StrCat(name_, " ended ", how, "; its log ends: ", LastLine()));
}

std::string ChildProcess::LastLine() const {
  std::ifstream file(log_);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

absl::StatusOr<bool> ChildProcess::WaitListening(absl::Duration timeout) {
  for (const absl::Time deadline = absl::Now() + timeout;;) {
    pollfd readable = {.fd = output_, .events = POLLIN};
    char bytes[4096];
    if (poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kPoll))) > 0) {
      const ssize_t count = read(output_, bytes, sizeof(bytes));
      if (count > 0) printed_.append(bytes, static_cast<size_t>(count));
    }
    for (const absl::string_view line : absl::StrSplit(printed_, '\n')) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      if (words.size() != 3 || words[0] != "listening") continue;
      grpc_address_ = words[1].substr(words[1].find('=') + 1);
      http_address_ = words[2].substr(words[2].find('=') + 1);
      return true;
    }
    if (const absl::Status status = Check(); !status.ok()) return status;
    if (absl::Now() >= deadline) return false;
  }
}

void ChildProcess::Terminate() {
  if (!Reap(WNOHANG)) kill(pid_, SIGTERM);
}

bool ChildProcess::WaitEnd(absl::Duration timeout) {
  for (const absl::Time deadline = absl::Now() + timeout; !Reap(WNOHANG); absl::SleepFor(kPoll)) {
    if (absl::Now() >= deadline) return false;
  }
  return true;
}

}  // namespace swiftcache::services::ctl
