// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/socket/descriptors.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>

namespace tf_fuse {

namespace {

// (Not Abseil's mutex, which a child could not unlock.)
struct Descriptors {
  std::mutex mu;  // No other lock is taken while it is held.
  std::set<int> open;
};

Descriptors* All() {
  static Descriptors* const all = [] {
    static Descriptors* const made = new Descriptors;
    // The lock: a descriptor that is being made is in the child, too.
    pthread_atfork([] { made->mu.lock(); }, [] { made->mu.unlock(); },
                   [] {
                     // Only this: the sockets are the parent's, too.
                     for (int fd : made->open) close(fd);
                     made->open.clear();
                     made->mu.unlock();
                   });
    return made;
  }();
  return all;
}

}  // namespace

int OpenDescriptor(absl::FunctionRef<int()> open) {
  Descriptors* const all = All();
  std::lock_guard<std::mutex> lock(all->mu);
  const int fd = open();
  if (fd >= 0) all->open.insert(fd);
  return fd;
}

void CloseDescriptor(int fd) {
  const int error = errno;  // Callers report it after this.
  {
    Descriptors* const all = All();
    std::lock_guard<std::mutex> lock(all->mu);
    if (all->open.erase(fd) > 0) close(fd);
  }
  errno = error;
}

}  // namespace tf_fuse
