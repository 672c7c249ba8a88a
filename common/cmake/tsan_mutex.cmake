# SPDX-License-Identifier: Apache-2.0
# Links common/sync/tsan_mutex.cc into everything and sends the calls of the symbols that it wraps through it.
add_library(swiftcache_tsan_mutex STATIC ${PROJECT_SOURCE_DIR}/common/sync/tsan_mutex.cc)
target_compile_options(swiftcache_tsan_mutex PRIVATE -fsanitize=thread)
target_link_libraries(swiftcache_tsan_mutex PUBLIC absl::synchronization absl::time)
target_link_libraries(swiftcache_sanitize INTERFACE swiftcache_tsan_mutex)
file(STRINGS ${PROJECT_SOURCE_DIR}/common/sync/tsan_mutex.cc tsan_wrap_lines REGEX "^WRAP(_WAIT)?\\(_Z")
foreach(line IN LISTS tsan_wrap_lines)
  string(REGEX MATCH "_Z[A-Za-z0-9_]+" symbol "${line}")
  target_link_options(swiftcache_sanitize INTERFACE "LINKER:--wrap=${symbol}")
endforeach()
