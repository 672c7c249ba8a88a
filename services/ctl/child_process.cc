// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/ctl/terminal.h"

namespace swiftcache::services::ctl {
namespace {

// Of the child, between fork and exec: nothing that takes a lock.
[[noreturn]] void Become(const char* binary, char* const* arguments, int output, int log, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);  // it ended before the line above
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
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
  if (pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0) return absl::ErrnoToStatus(errno, "a pipe to a server");
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
  const int end = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));  // glibc 2.36 declares pidfd_open for C alone
  const int end_error = errno;
  std::unique_ptr<ChildProcess> child(new ChildProcess(std::move(name), log, pid, end, pipe[0]));
  if (end < 0) return absl::ErrnoToStatus(end_error, absl::StrCat("watching ", binary));
  return child;
}

ChildProcess::~ChildProcess() {
  Kill();
  if (output_ >= 0) close(output_);
  if (end_ >= 0) close(end_);
}

// True: it has ended.
bool ChildProcess::Reap(int flags) {
  int status = 0;
  if (!status_ && waitpid(pid_, &status, flags) == pid_) status_ = status;
  return status_.has_value();
}

void ChildProcess::ReadOutput() {
  char bytes[4096];
  ssize_t count = 0;
  while (output_ >= 0 && (count = read(output_, bytes, sizeof(bytes))) > 0) {
    if (!listens()) printed_.append(bytes, static_cast<size_t>(count));
  }
  if (output_ >= 0 && count == 0) {
    close(output_);
    output_ = -1;
  }
  if (listens()) return;
  std::vector<std::string> lines = absl::StrSplit(printed_, '\n');
  lines.pop_back();  // not whole yet
  for (const std::string& line : lines) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() != 3 || words[0] != "listening") continue;
    grpc_address_ = words[1].substr(words[1].find('=') + 1);
    http_address_ = words[2].substr(words[2].find('=') + 1);
  }
}

absl::Status ChildProcess::Check() {
  ReadOutput();
  if (!Reap(WNOHANG)) return absl::OkStatus();
  const std::string how = WIFSIGNALED(*status_) ? absl::StrCat("by signal ", WTERMSIG(*status_))
                                                : absl::StrCat("with exit code ", WEXITSTATUS(*status_));
  return absl::AbortedError(absl::StrCat(name_, " ended ", how, "; its log ends: ", LastLine()));
}

std::vector<pollfd> ChildProcess::Events() const {
  return {{.fd = end_, .events = POLLIN}, {.fd = output_, .events = POLLIN}};  // poll skips a negative one
}

std::string ChildProcess::LastLine() const {
  std::ifstream file(log_);
  std::string last = "(it is empty)";
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return WithoutControls(last);
}

void ChildProcess::Terminate() {
  if (!Reap(WNOHANG)) kill(pid_, SIGTERM);
}

bool ChildProcess::WaitEnd(absl::Duration timeout) {
  pollfd end = {.fd = end_, .events = POLLIN};
  if (!status_) poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(std::max(timeout, absl::ZeroDuration()))));
  return Reap(WNOHANG);
}

void ChildProcess::Kill() {
  if (Reap(WNOHANG)) return;
  kill(pid_, SIGKILL);
  Reap(0);
}

}  // namespace swiftcache::services::ctl
