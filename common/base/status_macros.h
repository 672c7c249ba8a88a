// SPDX-License-Identifier: Apache-2.0
// RETURN_IF_ERROR and ASSIGN_OR_RETURN, which Debian's Abseil does not bring.
//
//   ASSIGN_OR_RETURN(HostPort listen, HostPort::Parse(text));
//   RETURN_IF_ERROR(CheckSpec(spec));
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define SWIFTCACHE_CONCAT_INNER(a, b) a##b
#define SWIFTCACHE_CONCAT(a, b) SWIFTCACHE_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expr)                                           \
  do {                                                                  \
    if (::absl::Status _status = (expr); !_status.ok()) return _status; \
  } while (false)

#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_IMPL(SWIFTCACHE_CONCAT(_status_or_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(var, lhs, expr) \
  auto var = (expr);                          \
  if (!var.ok()) return var.status();         \
  lhs = std::move(var).value()
