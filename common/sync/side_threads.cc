// SPDX-License-Identifier: Apache-2.0
#include "common/sync/side_threads.h"

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace swiftcache {

struct SideThreads::Pool : boost::asio::thread_pool {
  using thread_pool::thread_pool;
};

SideThreads::SideThreads(const Options& options)
    : waiting_(options.max_waiting_bytes), pool_(std::make_unique<Pool>(static_cast<size_t>(options.threads))) {}

SideThreads::~SideThreads() { pool_->join(); }

absl::Status SideThreads::Run(size_t bytes, std::function<void()> work) {
  const auto held = static_cast<int64_t>(bytes);
  if (!waiting_.Take(held)) {
    return absl::ResourceExhaustedError(absl::StrCat("the request takes ", bytes, " bytes, and those that wait for a ",
                                                     "thread already take most of the ", waiting_.limit_bytes(),
                                                     " bytes that they may: try again later, or send less"));
  }
  boost::asio::post(*pool_, [this, held, work = std::move(work)]() mutable {
    std::exchange(work, nullptr)();  // what it holds is gone before it counts as done
    waiting_.Give(held);
  });
  return absl::OkStatus();
}

}  // namespace swiftcache
