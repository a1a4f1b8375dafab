// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// When threads ran operations, for a recording of steps. TensorFlow's executors
// run operations in closures of thread pools, and TensorFlow calls a collector
// at the begin and the end of each closure if one is active. Its own collector
// writes a text for each; this one notes two times.

#ifndef TF_FUSE_CC_TRANSPORT_WATCH_BUSY_TIMES_H_
#define TF_FUSE_CC_TRANSPORT_WATCH_BUSY_TIMES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tf_fuse {

// Of the clock of TensorFlow's profiler.
struct BusyTime {
  int64_t start_ns;
  int64_t end_ns;
};

// The times of the recording that is being made. While none is, TensorFlow
// looks at one flag for each closure, as without tf_fuse. Thread-safe.
class BusyTimes {
 public:
  // Begins to collect, at most about `max_times` times. Returns false, and
  // collects nothing, if another collector is active: TensorFlow has room for
  // one, and that one is another profiler's.
  bool Start(size_t max_times = kMaxTimes);
  // Ends it. Returns when at least one thread ran operations, in order, and how
  // many times did not fit into memory. Closures that were under way at either
  // end are left out.
  std::vector<BusyTime> Stop(int64_t* dropped);

  static BusyTimes* Get();

 private:
  // A recording that is never ended must not take all memory.
  static constexpr size_t kMaxTimes = 4 << 20;

  absl::Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_WATCH_BUSY_TIMES_H_
