// SPDX-License-Identifier: Apache-2.0
#include "common/sync/side_threads.h"

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <utility>

namespace swiftcache {

struct SideThreads::Pool : boost::asio::thread_pool {
  using thread_pool::thread_pool;
};

SideThreads::SideThreads(const Options& options)
    : options_(options), pool_(std::make_unique<Pool>(static_cast<size_t>(options.threads))) {}

SideThreads::~SideThreads() { pool_->join(); }

void SideThreads::Run(std::function<void()> work) {
  if (waiting_.fetch_add(1) >= options_.max_waiting) {
    --waiting_;
    return work();
  }
  boost::asio::post(*pool_, [this, work = std::move(work)]() mutable {
    std::exchange(work, nullptr)();  // what it holds is gone before it counts as done
    --waiting_;
  });
}

}  // namespace swiftcache
