// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "base/sigterm.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace tf_fuse {
namespace {

// The process that catches it: a forked child has the handler, but no thread
// that waits for the signal.
std::atomic<pid_t> catcher{0};
sem_t came;
// What the handler stands in for, the first one first: a program may set a
// handler later, for which it stands in then, and which may call this one.
constexpr int kMostBefore = 8;
struct sigaction before[kMostBefore];
std::atomic<int> count{0};
// How many of them this thread is in.
thread_local int depth = 0;

bool IsDefault(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

bool EndsProcess() {
  const int known = count.load();
  return known > 0 && IsDefault(before[known - 1]);
}

void Handle(int number, siginfo_t* info, void* context) {
  const int place = count.load() - 1 - depth;
  if (place < 0) return;
  const struct sigaction& action = before[place];
  if (depth == 0) {
    if (catcher.load() == getpid()) {
      const int error = errno;
      sem_post(&came);
      errno = error;
    } else if (IsDefault(action)) {
      EndBySigterm();
    }
  }
  ++depth;
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(number, info, context);
  } else if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) {
    action.sa_handler(number);
  }
  --depth;
}

bool IsSame(const struct sigaction& a, const struct sigaction& b) {
  if (((a.sa_flags ^ b.sa_flags) & SA_SIGINFO) != 0) return false;
  return (a.sa_flags & SA_SIGINFO) != 0 ? a.sa_sigaction == b.sa_sigaction
                                        : a.sa_handler == b.sa_handler;
}

bool IsCaught(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == Handle;
}

}  // namespace

void CatchSigterm() {
  struct sigaction action;
  if (sigaction(SIGTERM, nullptr, &action) != 0 || IsCaught(action)) return;
  if ((action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN) {
    return;
  }
  // One that was there before stands in its old place: those that alternate do
  // not add up.
  int place = 0;
  const int known = count.load();
  while (place < known && !IsSame(before[place], action)) ++place;
  if (place == kMostBefore) return;
  before[place] = action;
  count.store(place + 1);
  if (catcher.load() != getpid()) sem_init(&came, 0, 0);
  catcher.store(getpid());
  action = {};
  action.sa_sigaction = Handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  action.sa_flags |= IsDefault(before[place])
                         ? SA_RESTART
                         : before[place].sa_flags & SA_RESTART;
  action.sa_mask = before[place].sa_mask;
  sigaction(SIGTERM, &action, nullptr);
}

void ReleaseSigterm() {
  struct sigaction action;
  if (sigaction(SIGTERM, nullptr, &action) == 0 && IsCaught(action)) {
    sigaction(SIGTERM, &before[count.load() - 1], nullptr);
  }
}

bool WaitForSigterm(double seconds) {
  while (sem_wait(&came) != 0 && errno == EINTR) {
  }
  if (!EndsProcess()) return false;
  std::thread([seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    EndBySigterm();
  }).detach();
  return true;
}

void EndBySigterm() {
  signal(SIGTERM, SIG_DFL);
  kill(getpid(), SIGTERM);
}

}  // namespace tf_fuse
