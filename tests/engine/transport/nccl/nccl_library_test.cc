// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace swiftcache::engine::transport::nccl {
namespace {

using testing::HasSubstr;

// A library of functions in the shape of NCCL's; what they were called with, and what they are to answer.
struct Calls {
  int version = 23203;
  std::map<std::string, int> answers;  // of functions, where they are not success
  int async_error = 0;
  std::vector<std::string> made;
  NcclConfig config;
  int rank = -1;
  NcclUniqueId id = {};
} calls;

int Answer(const char* function) {
  calls.made.push_back(function);
  const auto it = calls.answers.find(function);
  return it == calls.answers.end() ? 0 : it->second;
}

int GetVersion(int* version) {
  *version = calls.version;
  return 0;
}
int GetUniqueId(NcclUniqueId* id) {
  id->fill(std::byte{7});
  return Answer("ncclGetUniqueId");
}
int CommInitRankConfig(void** comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config) {
  *comm = &calls;
  EXPECT_EQ(ranks, 2);
  calls.id = id;
  calls.rank = rank;
  calls.config = *config;
  return Answer("ncclCommInitRankConfig");
}
int CommGetAsyncError(void* comm, int* error) {
  EXPECT_EQ(comm, &calls);
  *error = calls.async_error;
  return Answer("ncclCommGetAsyncError");
}
int CommAbort(void*) { return Answer("ncclCommAbort"); }
int GroupStart() { return Answer("ncclGroupStart"); }
int GroupEnd() { return Answer("ncclGroupEnd"); }
int Move(const char* function, const void* at, size_t count, int type, int peer, void* comm, void* stream) {
  EXPECT_EQ(type, 0) << "ncclInt8: counts are bytes";
  EXPECT_EQ(peer, 1);
  EXPECT_EQ(comm, &calls);
  EXPECT_EQ(reinterpret_cast<uint64_t>(stream), 99u);
  return Answer(
      (std::string(function) + " " + std::to_string(reinterpret_cast<uint64_t>(at)) + " " + std::to_string(count))
          .c_str());
}
int Send(const void* from, size_t count, int type, int peer, void* comm, void* stream) {
  return Move("ncclSend", from, count, type, peer, comm, stream);
}
int Recv(void* to, size_t count, int type, int peer, void* comm, void* stream) {
  return Move("ncclRecv", to, count, type, peer, comm, stream);
}
const char* GetErrorString(int) { return "what NCCL calls it"; }
const char* GetLastError(void*) { return "what happened"; }

void* Find(const std::string& name) {
  static const std::map<std::string, void*> functions = {
      {"ncclGetVersion", reinterpret_cast<void*>(&GetVersion)},
      {"ncclGetUniqueId", reinterpret_cast<void*>(&GetUniqueId)},
      {"ncclCommInitRankConfig", reinterpret_cast<void*>(&CommInitRankConfig)},
      {"ncclCommGetAsyncError", reinterpret_cast<void*>(&CommGetAsyncError)},
      {"ncclCommAbort", reinterpret_cast<void*>(&CommAbort)},
      {"ncclGroupStart", reinterpret_cast<void*>(&GroupStart)},
      {"ncclGroupEnd", reinterpret_cast<void*>(&GroupEnd)},
      {"ncclSend", reinterpret_cast<void*>(&Send)},
      {"ncclRecv", reinterpret_cast<void*>(&Recv)},
      {"ncclGetErrorString", reinterpret_cast<void*>(&GetErrorString)},
      {"ncclGetLastError", reinterpret_cast<void*>(&GetLastError)}};
  const auto it = functions.find(name);
  return it == functions.end() ? nullptr : it->second;
}

class NcclLibraryTest : public testing::Test {
 protected:
  NcclLibraryTest() { calls = Calls(); }
  std::unique_ptr<NcclLibrary> Library() {
    auto library = NcclLibrary::Over([](const char* name) { return Find(name); });
    EXPECT_TRUE(library.ok()) << library.status();
    return *std::move(library);
  }
};

TEST_F(NcclLibraryTest, NoLibraryIsOneErrorWithTheRemedy) {
  const absl::Status status = NcclLibrary::Load("libnccl-that-is-not-there.so").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("install libnccl2 2.18"));
}

TEST_F(NcclLibraryTest, AnOldLibraryIsOneErrorWithTheRemedy) {
  calls.version = 21701;
  const absl::Status status = NcclLibrary::Over([](const char* name) { return Find(name); }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("21701"));
  EXPECT_THAT(status.message(), HasSubstr("install libnccl2 2.18"));
}

TEST_F(NcclLibraryTest, ALibraryThatLacksFunctionsSaysWhich) {
  const auto without = [](const char* name) { return std::string(name) == "ncclSend" ? nullptr : Find(name); };
  const absl::Status status = NcclLibrary::Over(without).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("lacks ncclSend:"));
}

TEST_F(NcclLibraryTest, ACommunicatorDoesNotBlockAndSaysWhichFieldsItKnows) {
  const auto library = Library();
  EXPECT_EQ(library->version(), 23203);
  calls.answers["ncclCommInitRankConfig"] = 7;  // ncclInProgress
  const auto id = library->CreateUniqueId();
  ASSERT_TRUE(id.ok());
  const auto comm = library->Init(*id, 1);
  ASSERT_TRUE(comm.ok()) << comm.status();
  EXPECT_EQ(calls.rank, 1);
  EXPECT_EQ(calls.id, *id);
  EXPECT_EQ(calls.config.blocking, 0);
  EXPECT_EQ(calls.config.size, 48u);
  EXPECT_EQ(calls.config.magic, 0xcafebeefu);
  EXPECT_EQ(calls.config.version, 21800u);
  EXPECT_EQ(calls.config.min_ctas, INT32_MIN);
  EXPECT_EQ(calls.config.max_ctas, NcclConfig::kMostCtas) << "a donor's kernels wait on what it computes with";
  calls.async_error = 7;
  EXPECT_EQ(*library->Settled(*comm), false);
  calls.async_error = 0;
  EXPECT_EQ(*library->Settled(*comm), true);
}

TEST_F(NcclLibraryTest, RunsAreOneGroupInTheirOrder) {
  const auto library = Library();
  const NcclComm comm = *library->Init({}, 0);
  calls.made.clear();
  const std::vector<NcclRun> runs = {{1000, 10}, {2000, 20}};
  EXPECT_TRUE(library->Transfer(comm, NcclDirection::kSend, 1, runs, backend::cuda::Stream{99}).ok());
  EXPECT_TRUE(library->Transfer(comm, NcclDirection::kReceive, 1, runs, backend::cuda::Stream{99}).ok());
  EXPECT_THAT(calls.made,
              testing::ElementsAre("ncclGroupStart", "ncclSend 1000 10", "ncclSend 2000 20", "ncclGroupEnd",
                                   "ncclGroupStart", "ncclRecv 1000 10", "ncclRecv 2000 20", "ncclGroupEnd"));
}

TEST_F(NcclLibraryTest, AGroupInWhichACallFailsIsEndedAllTheSame) {
  const auto library = Library();
  const NcclComm comm = *library->Init({}, 0);
  calls.made.clear();
  calls.answers["ncclSend 1000 10"] = 6;  // ncclRemoteError
  const std::vector<NcclRun> runs = {{1000, 10}, {2000, 20}};
  const absl::Status status = library->Transfer(comm, NcclDirection::kSend, 1, runs, backend::cuda::Stream{99});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("ncclSend: what NCCL calls it (6; NCCL 2.32.3: what happened)"));
  EXPECT_THAT(calls.made, testing::ElementsAre("ncclGroupStart", "ncclSend 1000 10", "ncclGroupEnd"));
}

TEST_F(NcclLibraryTest, WhatFailsInTheBackgroundIsToldByItsKind) {
  const auto library = Library();
  const NcclComm comm = *library->Init({}, 0);
  const std::map<int, absl::StatusCode> codes = {
      {1, absl::StatusCode::kInternal},           {2, absl::StatusCode::kUnavailable},
      {3, absl::StatusCode::kInternal},           {4, absl::StatusCode::kInvalidArgument},
      {5, absl::StatusCode::kFailedPrecondition}, {6, absl::StatusCode::kUnavailable},
      {8, absl::StatusCode::kUnavailable}};
  for (const auto& [result, code] : codes) {
    calls.async_error = result;
    EXPECT_EQ(library->Settled(comm).status().code(), code) << result;
  }
}

// An older NCCL finds the same GPU twice.
TEST_F(NcclLibraryTest, TwoEnginesOnOneGpuAreToldWhatTheyNeed) {
  const auto library = Library();
  calls.answers["ncclCommInitRankConfig"] = 5;  // ncclInvalidUsage
  const absl::Status status = library->Init({}, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("NCCL 2.30.0 or later and NCCL_MULTI_RANK_GPU_ENABLE=1"));
  EXPECT_THAT(calls.made, testing::ElementsAre("ncclCommInitRankConfig", "ncclCommAbort"));
}

}  // namespace
}  // namespace swiftcache::engine::transport::nccl
