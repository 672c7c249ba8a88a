// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/budget.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache::gateway::text::jinja {

absl::Status Budget::TooManySteps() const {
  return absl::ResourceExhaustedError(absl::StrCat("the template took more than ", limits_.max_steps,
                                                   " steps: shorten the conversation or mend the template"));
}

absl::Status Budget::Enter() {
  if (++depth_ <= limits_.max_depth) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the template recursed deeper than ", limits_.max_depth, " levels: mend the template"));
}

absl::Status Budget::Reserve(int64_t bytes) {
  if (bytes > limits_.max_memory_bytes - memory_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the template needs more than ", limits_.max_memory_bytes,
                     " bytes of memory: shorten the conversation or mend the template"));
  }
  RETURN_IF_ERROR(SpendBytes(bytes));
  memory_bytes_ += bytes;
  return absl::OkStatus();
}

Charge::Charge(Charge&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Charge& Charge::operator=(Charge&& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Charge::~Charge() {
  if (budget_ != nullptr) budget_->memory_bytes_ -= bytes_;
}

absl::Status Charge::Grow(int64_t bytes) {
  if (budget_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(budget_->Reserve(bytes));
  bytes_ += bytes;
  return absl::OkStatus();
}

}  // namespace swiftcache::gateway::text::jinja
