// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

// Functions of TensorFlow that the fuzzer of requests replaces by its own.

#include <cstdint>
#include <functional>
#include <utility>

#include "tensorflow/core/platform/unbounded_work_queue.h"
#include "testing/requests/fuzz_task.h"

// What the linker puts in the place of TensorFlow's (--wrap), as far as our
// code calls it. Visible: it finds TensorFlow's references, too, and wants it
// so.
#define REPLACES(symbol) \
  asm("__wrap_" symbol) __attribute__((visibility("default")))

// So that an input has the same effect whenever it is run.
void Schedule(tsl::thread::ThreadPool*, std::function<void()> closure)
    REPLACES("_ZN3tsl6thread10ThreadPool8ScheduleESt8functionIFvvEE");
void Schedule(tsl::thread::ThreadPool*, std::function<void()> closure) {
  tf_fuse::testing::Tasks::Get()->Schedule(std::move(closure));
}

void ScheduleUnbounded(tsl::UnboundedWorkQueue*, std::function<void()> closure)
    REPLACES("_ZN3tsl18UnboundedWorkQueue8ScheduleESt8functionIFvvEE");
void ScheduleUnbounded(tsl::UnboundedWorkQueue*,
                       std::function<void()> closure) {
  tf_fuse::testing::Tasks::Get()->Schedule(std::move(closure));
}

// At once, and not a second later on a thread of its own.
void AbortStep(tensorflow::Worker*, int64_t step)
    REPLACES("_ZN10tensorflow6Worker9AbortStepEl");
void AbortStep(tensorflow::Worker*, int64_t step) {
  tf_fuse::testing::Tasks::Get()->sender.Step(step)->StartAbort(
      absl::AbortedError("aborted by its receiver"));
}
