// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/shared_memory/copy_threads.h"

#include <algorithm>
#include <utility>

#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"

namespace tf_fuse {

void ScheduleCopy(std::function<void()> copy) {
  // More threads than these do not copy faster. Never joined.
  constexpr int kMostThreads = 4;
  static auto* const pool = new tensorflow::thread::ThreadPool(
      tensorflow::Env::Default(), tensorflow::ThreadOptions(), "tf_fuse_copies",
      std::clamp(tensorflow::port::MaxParallelism(), 1, kMostThreads),
      /*low_latency_hint=*/false);
  pool->Schedule(std::move(copy));
}

}  // namespace tf_fuse
