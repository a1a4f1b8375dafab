// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "base/executors.h"

#include <algorithm>
#include <utility>

#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/unbounded_work_queue.h"

namespace tf_fuse {

namespace {

// What they do is short: requests are sent, and frames packed.
constexpr int kMinThreads = 2;
constexpr int kCpusPerThread = 4;

tensorflow::thread::ThreadPool* Threads() {
  // Never destroyed: server threads may schedule while the process exits.
  // Threads that wait for work do not spin.
  static auto* threads = new tensorflow::thread::ThreadPool(
      tensorflow::Env::Default(), tensorflow::ThreadOptions(),
      "tf_fuse_after_others",
      std::max(kMinThreads,
               tensorflow::port::MaxParallelism() / kCpusPerThread),
      /*low_latency_hint=*/false);
  return threads;
}

}  // namespace

void ScheduleAfterOthers(std::function<void()> closure) {
  Threads()->Schedule(std::move(closure));
}

void ScheduleElsewhere(std::function<void()> closure) {
  // Never destroyed, as above. It begins threads as it needs them.
  static auto* queue = new tensorflow::UnboundedWorkQueue(
      tensorflow::Env::Default(), "tf_fuse_elsewhere");
  queue->Schedule(std::move(closure));
}

}  // namespace tf_fuse
