// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "update/update_threads.h"

#include <algorithm>
#include <cstdint>

#include "tensorflow/core/platform/threadpool.h"

namespace tf_fuse {

namespace {

// A part takes at least this long: a server has other updates for its threads,
// and to wake one that sleeps takes some microseconds of two.
constexpr double kLeastPartNs = 500e3;

}  // namespace

void RunOnThreads(tensorflow::OpKernelContext* ctx,
                  const CompiledUpdate& program, const ProgramMemory& memory) {
  const auto& threads = *ctx->device()->tensorflow_cpu_worker_threads();
  const int64_t blocks = (program.size() + kBlockElements - 1) / kBlockElements;
  const auto worthwhile =
      static_cast<int64_t>(static_cast<double>(program.size()) *
                           program.nanoseconds() / kLeastPartNs);
  const int64_t parts = std::min<int64_t>(threads.num_threads, worthwhile);
  if (parts < 2) {
    program.Run(memory, 0, blocks);
    return;
  }
  threads.workers->ParallelFor(
      blocks,
      tsl::thread::ThreadPool::SchedulingParams::Fixed((blocks + parts - 1) /
                                                       parts),
      [&](int64_t begin, int64_t end) { program.Run(memory, begin, end); });
}

}  // namespace tf_fuse
