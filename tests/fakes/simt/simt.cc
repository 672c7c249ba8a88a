// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/simt/simt.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fakes/simt/include/cuda_runtime.h"

namespace swiftcache::simt {
namespace {

constexpr size_t kStackBytes = 64 << 10, kPageBytes = 4096, kGuardBytes = 128;
constexpr size_t kStackStride = kPageBytes + kStackBytes;  // a page that nobody may touch, below each stack
constexpr unsigned kMostWarps = kMostThreads / kWarp;
constexpr int kUnset = 0xff;
constexpr std::byte kGuard{0xa5};

struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

struct Thread {
  enum State { kReady, kInBarrier, kInWarp, kConverging, kEnded } state = kReady;
  const char* at = "";  // the call that it waits in
  int line = 0;
  unsigned active = 0;  // what ActiveMask() returns
  std::vector<Copy> begun;
  std::deque<std::vector<Copy>> batches;
  jmp_buf registers;
  bool has_stack = false;
};

// Lanes of one mask on their way to one call.
struct Meeting {
  unsigned mask = 0, here = 0;
  const char* what = "";
  Lanes lanes = {};
};

// All of it belongs to the grid that runs.
struct Machine {
  std::mutex one_grid;
  uint64_t random = 1;
  unsigned running = 0, threads_of_block = 0, ended = 0, in_barrier = 0;
  std::pair<const char*, int> barrier;  // in which `in_barrier` threads are
  std::vector<Thread> threads = std::vector<Thread>(kMostThreads);
  std::array<std::vector<unsigned>, kMostWarps> ready;  // threads, by warp
  std::vector<unsigned> order;                          // of warps: the first that can go on does, mostly
  std::array<std::vector<Meeting>, kMostWarps> meetings;
  absl::FunctionRef<void()>* kernel = nullptr;
  std::byte *stacks = nullptr, *memory = nullptr;
  size_t memory_bytes = 0;
  jmp_buf outside;
};

Machine& machine() {
  static Machine machine;
  return machine;
}

Thread& Self() { return machine().threads[machine().running]; }

uint64_t Random() {  // splitmix64
  uint64_t x = machine().random += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// --- who runs

void SwitchTo(jmp_buf& from, jmp_buf& to) {
  if (_setjmp(from) == 0) _longjmp(to, 1);
}

void Wake(unsigned thread) {
  machine().threads[thread].state = Thread::kReady;
  machine().ready[thread / kWarp].push_back(thread);
}

// The warps in another order, in which some are far ahead of others.
void Shuffle() {
  std::vector<unsigned>& order = machine().order;
  for (size_t i = 1; i < order.size(); ++i) std::swap(order[i], order[Random() % (i + 1)]);
}

// Somebody who can go on, or null: of the first warp that can, or, so that none is always last, of any.
std::vector<unsigned>* WarpThatGoesOn() {
  Machine& m = machine();
  const size_t skipped = Random() % 16 == 0 ? Random() % m.order.size() : 0;
  for (size_t i = 0; i < m.order.size(); ++i) {
    std::vector<unsigned>& ready = m.ready[m.order[(i + skipped) % m.order.size()]];
    if (!ready.empty()) return &ready;
  }
  return nullptr;
}

// Lanes of a warp that ask who is active: some of them, of some warp, are told that it is they.
bool Converge() {
  Machine& m = machine();
  std::vector<unsigned> warps;
  const auto asking = [&m](unsigned warp) {
    unsigned mask = 0;
    for (unsigned lane = 0; lane < kWarp && warp * kWarp + lane < m.threads_of_block; ++lane) {
      if (m.threads[warp * kWarp + lane].state == Thread::kConverging) mask |= 1u << lane;
    }
    return mask;
  };
  for (unsigned warp = 0; warp * kWarp < m.threads_of_block; ++warp) {
    if (asking(warp) != 0) warps.push_back(warp);
  }
  if (warps.empty()) return false;
  const unsigned warp = warps[Random() % warps.size()], all = asking(warp);
  const auto some = Random() % 2 == 0 ? all : all & static_cast<unsigned>(Random());
  const unsigned active = some == 0 ? all : some;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((active >> lane & 1u) == 0) continue;
    m.threads[warp * kWarp + lane].active = active;
    Wake(warp * kWarp + lane);
  }
  return true;
}

std::string WhoWaitsWhere() {
  std::map<std::string, std::vector<unsigned>> places;
  for (unsigned i = 0; i < machine().threads_of_block; ++i) {
    const Thread& t = machine().threads[i];
    places[t.state == Thread::kEnded ? "have ended" : absl::StrCat("wait in ", t.at, ":", t.line)].push_back(i);
  }
  std::string text;
  for (const auto& [place, who] : places) absl::StrAppend(&text, who.size(), " threads ", place, ", as ", who[0], "; ");
  return text;
}

// Goes on with another thread, or outside when the block is done. `from`: what goes on later.
void Next(jmp_buf& from) {
  Machine& m = machine();
  std::vector<unsigned>* ready = WarpThatGoesOn();
  if (ready == nullptr) {
    if (m.ended == m.threads_of_block) return SwitchTo(from, m.outside);
    if (!Converge()) Die(absl::StrCat("nobody can go on: ", WhoWaitsWhere()).c_str());
    ready = WarpThatGoesOn();
  }
  std::swap((*ready)[Random() % ready->size()], ready->back());
  m.running = ready->back();
  ready->pop_back();
  threadIdx.x = m.running;
  SwitchTo(from, m.threads[m.running].registers);
}

void Wait(Thread::State state, const char* at, int line) {
  Thread& self = Self();
  self.state = state;
  self.at = at;
  self.line = line;
  Next(self.registers);
}

// A stack serves a thread of one block after the other.
void ThreadMain() {
  SwitchTo(Self().registers, machine().outside);
  for (;;) {
    (*machine().kernel)();
    if (!Self().begun.empty() || !Self().batches.empty()) Die("a thread ends with copies for which nobody waited");
    ++machine().ended;
    Wait(Thread::kEnded, "", 0);
  }
}

void MakeStack(unsigned thread) {
  Machine& m = machine();
  if (m.stacks == nullptr) {
    void* const stacks = mmap(nullptr, kMostThreads * kStackStride, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) Die("no memory for stacks");
    m.stacks = static_cast<std::byte*>(stacks);
  }
  std::byte* const guard = m.stacks + thread * kStackStride;
  if (mprotect(guard, kPageBytes, PROT_NONE) != 0) Die("no guard of a stack");
  ucontext_t context;
  getcontext(&context);
  context.uc_stack = {.ss_sp = guard + kPageBytes, .ss_flags = 0, .ss_size = kStackBytes};
  context.uc_link = nullptr;
  makecontext(&context, &ThreadMain, 0);
  m.running = thread;
  m.threads[thread].has_stack = true;
  if (_setjmp(m.outside) == 0) setcontext(&context);
}

void RunBlock(unsigned threads) {
  Machine& m = machine();
  m.threads_of_block = threads;
  m.ended = m.in_barrier = 0;
  m.order.resize(threads / kWarp);
  std::iota(m.order.begin(), m.order.end(), 0u);
  Shuffle();
  for (unsigned i = 0; i < threads; ++i) {
    if (!m.threads[i].has_stack) MakeStack(i);
    Wake(i);
  }
  Next(m.outside);
}

// --- copies

// The distance from below the memory is larger than any.
bool IsInBlockMemory(const void* begin, size_t bytes) {
  const size_t offset = reinterpret_cast<uintptr_t>(begin) - reinterpret_cast<uintptr_t>(machine().memory);
  return offset <= machine().memory_bytes && bytes <= machine().memory_bytes - offset;
}

void Arrive(const std::vector<Copy>& batch) {
  for (const Copy& copy : batch) std::memcpy(copy.to, copy.from, copy.bytes);
}

}  // namespace

void Die(const char* what) {
  std::fprintf(stderr, "emulated GPU: block (%u, %u), thread %u: %s\n", blockIdx.x, blockIdx.y, machine().running,
               what);
  std::abort();
}

void Seed(uint64_t seed) { machine().random = seed; }
std::byte* BlockMemory() { return machine().memory; }

void RunGrid(const Grid& grid, absl::FunctionRef<void()> kernel) {
  Machine& m = machine();
  const std::lock_guard lock(m.one_grid);
  if (grid.threads == 0 || grid.threads > kMostThreads || grid.threads % kWarp != 0) Die("a block of no whole warps");
  struct alignas(kGuardBytes) Line {
    std::byte bytes[kGuardBytes];
  };
  const auto lines = static_cast<size_t>(grid.memory_bytes) / kGuardBytes + 1;
  std::vector<Line> memory(lines + 1);
  m.memory = memory.front().bytes;
  m.memory_bytes = static_cast<size_t>(grid.memory_bytes);
  m.kernel = &kernel;
  blockDim = dim3(grid.threads);
  gridDim = dim3(grid.blocks.x, grid.blocks.y, grid.blocks.z);
  std::vector<std::pair<unsigned, unsigned>> blocks;
  for (unsigned x = 0; x < grid.blocks.x; ++x) {
    for (unsigned y = 0; y < grid.blocks.y; ++y) blocks.emplace_back(x, y);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::swap(blocks[i], blocks[i + Random() % (blocks.size() - i)]);
    blockIdx.x = blocks[i].first;
    blockIdx.y = blocks[i].second;
    std::memset(m.memory, kUnset, grid.memory_bytes);
    std::byte* const end = m.memory + grid.memory_bytes;
    std::fill_n(end, kGuardBytes, kGuard);
    RunBlock(grid.threads);
    if (!std::all_of(end, end + kGuardBytes, [](std::byte b) { return b == kGuard; })) {
      Die("something was written behind the memory of the block");
    }
  }
}

// --- what threads call

void SyncThreads(const char* file, int line) {
  Machine& m = machine();
  if (m.in_barrier == 0) m.barrier = {file, line};
  if (m.barrier.second != line || std::strcmp(m.barrier.first, file) != 0) {
    Die(absl::StrCat("threads are in different barriers: ", file, ":", line, "; ", WhoWaitsWhere()).c_str());
  }
  if (++m.in_barrier < m.threads_of_block) return Wait(Thread::kInBarrier, file, line);
  m.in_barrier = 0;
  if (Random() % 4 == 0) Shuffle();
  for (unsigned i = 0; i < m.threads_of_block; ++i) {
    if (i != m.running) Wake(i);
  }
  Wake(m.running);  // in its turn
  Next(Self().registers);
}

void Meet(unsigned mask, const char* what, void* mine, absl::FunctionRef<void(const Lanes&)> once) {
  Machine& m = machine();
  const unsigned warp = m.running / kWarp, me = 1u << (m.running % kWarp);
  if ((mask & me) == 0) Die(absl::StrCat(what, ": the mask is without the thread that calls it").c_str());
  std::vector<Meeting>& meetings = m.meetings[warp];
  auto meeting = std::find_if(meetings.begin(), meetings.end(), [&](const Meeting& x) { return (x.mask & me) != 0; });
  if (meeting == meetings.end()) meeting = meetings.insert(meeting, {.mask = mask, .what = what});
  if (meeting->mask != mask || std::strcmp(meeting->what, what) != 0) {
    Die(absl::StrCat("lanes of a warp meet in ", what, " and in ", meeting->what, ", or with different masks").c_str());
  }
  meeting->here |= me;
  meeting->lanes[m.running % kWarp] = mine;
  if (meeting->here != mask) return Wait(Thread::kInWarp, what, 0);
  once(meeting->lanes);
  meetings.erase(meeting);
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1u) != 0) Wake(warp * kWarp + lane);
  }
  Next(Self().registers);
}

unsigned ActiveMask() {
  Wait(Thread::kConverging, "__activemask", 0);
  return Self().active;
}

void CheckInBlockMemory(const void* begin, size_t bytes, const char* what) {
  if (!IsInBlockMemory(begin, bytes)) Die(absl::StrCat(what, " is not in the block's memory").c_str());
}

void BeginCopy(void* to, const void* from, size_t bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) Die("a copy of neither 4, 8 nor 16 bytes");
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0) {
    Die(absl::StrCat("a copy of ", bytes, " bytes that do not lie on as many").c_str());
  }
  CheckInBlockMemory(to, bytes, "the destination of a copy");
  if (IsInBlockMemory(from, bytes)) Die("a copy from the block's memory");
  std::memset(to, kUnset, bytes);
  Self().begun.push_back({static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes});
}

void CommitCopies() {
  Self().batches.push_back(std::exchange(Self().begun, {}));
  if (Random() % 4 == 0) Arrive(Self().batches.front());  // it comes again when it is awaited: the source must stay
}

void AwaitCopies(size_t but_so_many_batches) {
  for (auto& batches = Self().batches; batches.size() > but_so_many_batches; batches.pop_front()) {
    Arrive(batches.front());
  }
}

}  // namespace swiftcache::simt
