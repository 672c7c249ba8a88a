// SPDX-License-Identifier: Apache-2.0
#include "common/log/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/log/line_writer.h"

namespace swiftcache {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(10);
const std::string kMissing = " missing here: ";

/// A pipe whose reader reads when it is told to.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0); }
  ~Pipe() {
    CloseReader();
    close(ends_[1]);
  }
  int writer() const { return ends_[1]; }
  /// Until nothing more fits.
  void Fill() {
    const int flags = fcntl(writer(), F_GETFL);
    fcntl(writer(), F_SETFL, flags | O_NONBLOCK);
    const std::string line = "filling\n";
    while (write(writer(), line.data(), line.size()) > 0) {
    }
    fcntl(writer(), F_SETFL, flags);
  }
  void CloseReader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  /// Reads until a line contains `last`; what was not there before Fill was called.
  std::vector<std::string> ReadUntil(const std::string& last) {
    std::string text;
    while (!absl::StrContains(text, last) || text.back() != '\n') {
      char buffer[65536];
      const ssize_t n = read(ends_[0], buffer, sizeof buffer);
      if (n <= 0) break;
      text.append(buffer, n);
    }
    std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
    std::erase(lines, "filling");
    return lines;
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
};

bool SaysMissing(const std::string& line) { return absl::StrContains(line, kMissing); }

int64_t CountMissing(const std::vector<std::string>& lines) {
  int64_t missing = 0;
  for (const std::string& line : lines) {
    if (!SaysMissing(line)) continue;
    int64_t count = 0;
    const std::vector<std::string> words = absl::StrSplit(line.substr(line.find("] ") + 2), ' ');
    EXPECT_TRUE(absl::SimpleAtoi(words[0], &count)) << line;
    missing += count;
  }
  return missing;
}

TEST(LineWriterTest, LinesArriveWholeAndInOrderHoweverLongTheyAre) {
  Pipe pipe;
  LineWriter writer({.fd = pipe.writer()});
  std::vector<std::string> written;
  for (int i = 0; i < 200; ++i) written.push_back(absl::StrCat(i, std::string((i * 997) % 20000, 'x')));
  std::thread producer([&] {
    for (const std::string& line : written) writer.WriteAnyway(absl::StrCat(line, "\n"));
    writer.WriteAnyway("the end\n");
  });
  std::vector<std::string> lines = pipe.ReadUntil("the end");
  producer.join();
  lines.pop_back();
  EXPECT_THAT(lines, ElementsAreArray(written));
  EXPECT_EQ(writer.lost(), 0);
  EXPECT_TRUE(writer.Flush(absl::Now() + kSoon));
}

TEST(LineWriterTest, APipeThatNobodyReadsHoldsNobodyUpAndIsToldLaterWhatIsMissing) {
  constexpr int kThreads = 4, kLines = 25000;
  Pipe pipe;
  pipe.Fill();
  LineWriter writer({.fd = pipe.writer(), .max_bytes = 100'000});
  const absl::Time begin = absl::Now();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&writer, t] {
      for (int i = 0; i < kLines; ++i) writer.Write(absl::StrCat("thread ", t, " line ", i, "\n"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  const int64_t lost = writer.lost();
  EXPECT_GT(lost, kThreads * kLines / 2);
  EXPECT_FALSE(writer.Flush(absl::Now() + absl::Milliseconds(20)));

  const std::vector<std::string> early = pipe.ReadUntil(kMissing);
  EXPECT_TRUE(SaysMissing(early.back())) << early.back();
  EXPECT_EQ(CountMissing(early), lost);
  EXPECT_EQ(static_cast<int64_t>(early.size()) - 1, kThreads * kLines - lost);
  writer.Write("the tail\n");
  EXPECT_THAT(pipe.ReadUntil("the tail"), ElementsAre("the tail"));
  EXPECT_EQ(writer.lost(), lost);
}

TEST(LineWriterTest, WhatIsMissingIsSaidWhereItIsMissing) {
  Pipe pipe;
  pipe.Fill();
  LineWriter writer({.fd = pipe.writer(), .max_bytes = 30});
  writer.Write("one of ten\n");
  writer.Write("two of ten\n");
  writer.Write("does not fit\n");
  writer.WriteAnyway("why it ends\n");
  writer.Write("nor does this\n");
  const std::vector<std::string> lines = pipe.ReadUntil(kMissing);
  EXPECT_THAT(lines, ElementsAre("one of ten", "two of ten", "why it ends", HasSubstr("] 2 lines are missing here")));
  EXPECT_EQ(writer.lost(), 2);
}

TEST(LineWriterTest, AReaderThatHasGoneCostsLinesAndNothingElse) {
  Pipe pipe;
  LineWriter writer({.fd = pipe.writer()});
  pipe.CloseReader();
  for (int i = 0; i < 100; ++i) writer.Write("nobody reads this\n");
  EXPECT_TRUE(writer.Flush(absl::Now() + kSoon));
  EXPECT_EQ(writer.lost(), 100);
}

TEST(LineWriterTest, AFullDiskCostsLinesUntilThereIsRoomAgain) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/line_writer_test.", getpid(), ".log");
  const int fd = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit small{.rlim_cur = 18, .rlim_max = usual.rlim_max};  // amid the second line
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  LineWriter writer({.fd = fd});
  for (const char* line : {"line one\n", "line number two\n", "line three\n"}) {
    writer.Write(line);
    EXPECT_TRUE(writer.Flush(absl::Now() + kSoon));
  }
  EXPECT_EQ(writer.lost(), 2);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &usual), 0);
  writer.Write("line four\n");
  EXPECT_TRUE(writer.Flush(absl::Now() + kSoon));
  char text[1024];
  const int reader = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t size = read(reader, text, sizeof text);
  ASSERT_GT(size, 0);
  const std::vector<std::string> lines = absl::StrSplit(absl::string_view(text, size), '\n');
  EXPECT_THAT(lines, ElementsAre("line one", "line numb", HasSubstr("] 2 lines are missing here"), "line four", ""));
  EXPECT_EQ(writer.lost(), 2);
  close(reader);
  close(fd);
  unlink(path.c_str());
}

TEST(LineWriterTest, ADescriptorThatTakesNothingDoesNotHoldUpTheEnd) {
  // Of the writer that is left behind, which may look at it only after the test: by then it must be no other file.
  static Pipe pipe;
  pipe.Fill();
  const absl::Time begin = absl::Now();
  {
    LineWriter writer({.fd = pipe.writer()});
    writer.Write("nobody reads this\n");
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

class LogDeathTest : public ::testing::Test {
 protected:
  LogDeathTest() { ::testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

// What the dying processes do.

void BeginToLog() { InitLogging({.program = "test"}); }

void BeginToLogWithoutReader() {
  static Pipe pipe;
  pipe.Fill();
  dup2(pipe.writer(), STDERR_FILENO);
  BeginToLog();
}

void FailACheck() {
  LOG(INFO) << "logged before";
  CHECK(1 + 1 == 3) << "sums are wrong";
}

TEST_F(LogDeathTest, AFailedCheckIsPrintedWithItsStackBehindWhatWasLoggedBefore) {
  EXPECT_EXIT((BeginToLog(), FailACheck()), ::testing::KilledBySignal(SIGABRT),
              "I[0-9]{8} [0-9:.]+ +[0-9]+ log_test.cc:[0-9]+\\] logged before\n"
              "F[0-9]{8} [0-9:.]+ +[0-9]+ log_test.cc:[0-9]+\\] Check failed: 1 \\+ 1 == 3 sums are wrong\n"
              "\\*\\*\\* Check failure stack trace: \\*\\*\\*\n +@ ");
}

TEST_F(LogDeathTest, AFailedCheckEndsAProcessWhoseLogNobodyReads) {
  const absl::Time begin = absl::Now();
  EXPECT_EXIT((BeginToLogWithoutReader(), FailACheck()), ::testing::KilledBySignal(SIGABRT), "");
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
}

void LogALotAndEnd() {
  for (int i = 0; i < 100'000; ++i) LOG(INFO) << "line " << i;
  PrintBehindLog("test: why it ends");
  exit(LogLinesLost() > 0 ? 3 : 2);
}

void LogALineAndEnd() {
  LOG(INFO) << "logged before";
  PrintBehindLog("test: why it ends");
  exit(2);
}

TEST_F(LogDeathTest, WhyAProcessEndsIsItsLastLine) {
  EXPECT_EXIT((BeginToLog(), LogALineAndEnd()), ::testing::ExitedWithCode(2),
              "\\] logged before\ntest: why it ends\n$");
}

TEST_F(LogDeathTest, AProcessWhoseLogNobodyReadsEndsAllTheSame) {
  EXPECT_EXIT((BeginToLogWithoutReader(), LogALotAndEnd()), ::testing::ExitedWithCode(3), "");
}

void LogInJson(LogLevel level = LogLevel::kInfo) {
  InitLogging({.program = "/usr/bin/test", .engine = "e", .model = "m", .level = level, .json = true});
}

void LogOfARequest() {
  NameEngine("e-2");
  LOG(WARNING) << RequestTag{"r \"1\"\n", "00-4bf9"} << LogField{"tokens", 3} << LogField{"left_out", ""}
               << "done \xff";
  exit(FlushLog(kSoon) ? 0 : 1);
}

TEST_F(LogDeathTest, ALineOfJsonHasTheRequestAndTheProcessInIt) {
  EXPECT_EXIT((LogInJson(), LogOfARequest()), ::testing::ExitedWithCode(0),
              "^\\{\"time\":\"[0-9]{4}-[0-9-]{5}T[0-9:]{8}\\.[0-9]{6}Z\",\"severity\":\"WARNING\","
              "\"file\":\"log_test.cc\",\"line\":[0-9]+,\"thread\":[0-9]+,\"program\":\"test\",\"engine\":\"e-2\","
              "\"model\":\"m\",\"request_id\":\"r \\\\\"1\\\\\"\\\\n\",\"trace\":\"00-4bf9\",\"tokens\":3,"
              "\"message\":\"done \xef\xbf\xbd\"\\}\n$");
}

TEST_F(LogDeathTest, ATextLineHasTheSameInWordsThatCannotBeForged) {
  EXPECT_EXIT((InitLogging({.program = "test", .engine = "e", .model = "m"}), LogOfARequest()),
              ::testing::ExitedWithCode(0),
              "\\] request_id=\"r \\\\\"1\\\\\"\\\\n\" trace=00-4bf9 engine=e-2 model=m tokens=3 done \xff\n$");
}

TEST_F(LogDeathTest, AFailedCheckIsALineOfJsonInFrontOfItsStack) {
  EXPECT_EXIT((LogInJson(LogLevel::kError), FailACheck()), ::testing::KilledBySignal(SIGABRT),
              "^\\{[^\n]*\"severity\":\"FATAL\"[^\n]*Check failed: 1 \\+ 1 == 3 sums are wrong\"\\}\n"
              "\\*\\*\\* Check failure stack trace: \\*\\*\\*\n +@ ");
}

TEST_F(LogDeathTest, WhyAProcessEndsIsALineOfJsonToo) {
  EXPECT_EXIT((LogInJson(), LogALineAndEnd()), ::testing::ExitedWithCode(2),
              "\"severity\":\"ERROR\"[^\n]*\"message\":\"test: why it ends\"\\}\n$");
}

void LogInJsonWithoutReader() {
  static Pipe pipe;
  pipe.Fill();
  const int terminal = dup(STDERR_FILENO);
  dup2(pipe.writer(), STDERR_FILENO);
  LogInJson();
  for (int i = 0; i < 100'000; ++i) LOG(INFO) << "line " << i;
  const std::vector<std::string> lines = pipe.ReadUntil(kMissing);
  dprintf(terminal, "%s\n", lines.back().c_str());
  exit(0);
}

TEST_F(LogDeathTest, ThatLinesAreMissingIsSaidInJson) {
  EXPECT_EXIT(LogInJsonWithoutReader(), ::testing::ExitedWithCode(0),
              "^\\{[^\n]*\"severity\":\"WARNING\"[^\n]*\"message\":\"[0-9]+ lines are missing here: [^\n]*\"\\}\n$");
}

// Which of an error, a warning, information and a verbose line are logged.
void LogAtLevel(LogLevel level) {
  InitLogging({.program = "test", .level = level});
  LOG(ERROR) << "E!";
  LOG(WARNING) << "W!";
  LOG(INFO) << "I!";
  exit(FlushLog(kSoon) ? static_cast<int>(CurrentLogLevel()) : 9);
}

TEST_F(LogDeathTest, WhatIsBelowTheLevelIsNotLogged) {
  EXPECT_EXIT(LogAtLevel(LogLevel::kError), ::testing::ExitedWithCode(0), "^E[^\n]*E!\n$");
  EXPECT_EXIT(LogAtLevel(LogLevel::kWarning), ::testing::ExitedWithCode(1), "^E[^\n]*E!\nW[^\n]*W!\n$");
  EXPECT_EXIT(LogAtLevel(LogLevel::kInfo), ::testing::ExitedWithCode(2), "^E[^\n]*E!\nW[^\n]*W!\nI[^\n]*I!\n$");
  EXPECT_EXIT(LogAtLevel(LogLevel::kVerbose), ::testing::ExitedWithCode(3), "^E[^\n]*E!\nW[^\n]*W!\nI[^\n]*I!\n$");
}

void ChangeTheLevel() {
  InitLogging({.program = "test", .level = LogLevel::kWarning});
  LOG(INFO) << "hidden";
  SetLogLevel(LogLevel::kInfo);
  LOG(INFO) << "shown";
  SetLogLevel(LogLevel::kError);
  LOG(WARNING) << "hidden too";
  SetLogLevel(LogLevel::kWarning);
  exit(FlushLog(kSoon) ? 0 : 1);
}

TEST_F(LogDeathTest, AChangeOfTheLevelTakesEffectAtOnceAndIsAlwaysSaid) {
  EXPECT_EXIT(ChangeTheLevel(), ::testing::ExitedWithCode(0),
              "^W[^\n]*log level: info, was warning\nI[^\n]*shown\nW[^\n]*log level: error, was info\n"
              "W[^\n]*log level: warning, was error\n$");
}

void LogWithStandardErrorClosed() {
  close(STDERR_FILENO);
  BeginToLog();
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  LOG(INFO) << "nobody reads this";
  exit(next > STDERR_FILENO && FlushLog(kSoon) ? 2 : 3);
}

TEST_F(LogDeathTest, AClosedStandardErrorDoesNotBecomeTheNextFileThatIsOpened) {
  EXPECT_EXIT(LogWithStandardErrorClosed(), ::testing::ExitedWithCode(2), "");
}

}  // namespace
}  // namespace swiftcache
