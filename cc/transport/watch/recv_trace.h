// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Fused receives in TensorFlow's profiles: a plane "/device:CUSTOM:tf_fuse"
// with one event per receive, on the receiver's and on the sender's side. A
// plane of our own, since receives overlap: as events of the threads that end
// them they could not be drawn.

#ifndef TF_FUSE_CC_TRANSPORT_WATCH_RECV_TRACE_H_
#define TF_FUSE_CC_TRANSPORT_WATCH_RECV_TRACE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "transport/message/receive_keys.h"

namespace tf_fuse {

struct TracedRecv {
  // One of the two; it has the names of the tensors.
  std::shared_ptr<const FusedKeys> received;
  std::shared_ptr<const ParsedKeys> served;
  int64_t step_id = 0;
  // Of the clock of TensorFlow's profiler.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t bytes = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  // Per slot, microseconds until its tensor was there; empty if not known.
  std::vector<int64_t> waits_micros;
  // Bytes of names that no other event shares.
  size_t names_bytes = 0;
};

// The events of the profile that is being made. Thread-safe.
class RecvTrace {
 public:
  // All that a receive costs while no profile is made.
  static bool Active() { return active_.load(std::memory_order_relaxed); }

  // Now, on the clock of TensorFlow's profiler.
  static int64_t NowNanos();

  void Start();
  // What was added since Start(), in the order of the ends, and how many events
  // did not fit into memory.
  std::vector<TracedRecv> Stop(int64_t* dropped);

  // Does nothing unless a profile is being made.
  void Add(TracedRecv event);

  static RecvTrace* Get();

 private:
  static std::atomic<bool> active_;

  absl::Mutex mu_;
  std::vector<TracedRecv> events_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_WATCH_RECV_TRACE_H_
