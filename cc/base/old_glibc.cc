// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Definitions for symbols that glibc 2.27 and the libstdc++ of its time do not
// have. They are hidden: only this library uses them. Programs that are built
// for a test take the system's.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

#pragma GCC visibility push(hidden)

extern "C" {

// glibc 2.33 has these as functions; before, headers called __fxstat and
// __xstat. The kernel fills the same struct on these processors.
int fstat(int fd, struct stat* found) noexcept {
  return static_cast<int>(syscall(SYS_fstat, fd, found));
}

int stat(const char* path, struct stat* found) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, found, 0));
}

// glibc 2.32; std::shared_ptr reads it. False is always right: the counts are
// changed by atomic instructions.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

}  // extern "C"

namespace std {

// GLIBCXX_3.4.29; `new T[n]` calls it where n is too large.
[[noreturn]] void __throw_bad_array_new_length() {
  throw bad_array_new_length();
}

}  // namespace std

#pragma GCC visibility pop

#endif
