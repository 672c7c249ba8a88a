// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/account.h"

#include <utility>

namespace swiftcache::engine::lease {

void Accounts::Begin(const std::string& model, int64_t bytes, absl::Time now) {
  Advance(now);
  ++changes_;
  Account& account = accounts_[model];
  ++account.leases;
  account.bytes += bytes;
}

void Accounts::End(const std::string& model, int64_t bytes, Ending ending, bool fenced, absl::Time now) {
  Advance(now);
  ++changes_;
  Account& account = accounts_.at(model);
  account.bytes -= bytes;
  ++(fenced ? account.of(ending).fenced : account.of(ending).released);
}

void Accounts::Advance(absl::Time now) {
  const int64_t micros = absl::ToUnixMicros(now), passed = micros - counted_until_;
  if (passed <= 0) return;
  counted_until_ = micros;
  for (auto& [model, account] : accounts_) account.byte_micros += absl::int128(account.bytes) * passed;
}

std::map<std::string, Account> Accounts::At(absl::Time now) const {
  Accounts until_now = *this;
  until_now.Advance(now);
  return std::move(until_now.accounts_);
}

}  // namespace swiftcache::engine::lease
