// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/watch/recv_trace.h"

#include <utility>

#include "xla/tsl/profiler/utils/time_utils.h"

namespace tf_fuse {

namespace {

// A profile that is never ended must not take all memory.
constexpr size_t kMaxBytes = 256 << 20;

}  // namespace

std::atomic<bool> RecvTrace::active_{false};

RecvTrace* RecvTrace::Get() {
  // Never destroyed: server threads may add while the process exits.
  static RecvTrace* trace = new RecvTrace;
  return trace;
}

int64_t RecvTrace::NowNanos() { return tsl::profiler::GetCurrentTimeNanos(); }

void RecvTrace::Start() {
  absl::MutexLock lock(&mu_);
  events_.clear();
  bytes_ = 0;
  dropped_ = 0;
  active_.store(true);
}

std::vector<TracedRecv> RecvTrace::Stop(int64_t* dropped) {
  absl::MutexLock lock(&mu_);
  active_.store(false);
  *dropped = dropped_;
  return std::exchange(events_, {});
}

void RecvTrace::Add(TracedRecv event) {
  absl::MutexLock lock(&mu_);
  if (!active_.load()) return;
  const size_t bytes = sizeof(event) +
                       event.waits_micros.size() * sizeof(int64_t) +
                       event.names_bytes;
  if (bytes_ + bytes > kMaxBytes) {
    ++dropped_;
    return;
  }
  bytes_ += bytes;
  events_.push_back(std::move(event));
}

}  // namespace tf_fuse
