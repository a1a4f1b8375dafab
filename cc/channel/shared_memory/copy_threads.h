// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs threads that copy between tensors and shared memory: on the thread of a
// data channel a copy would keep all others waiting.

#ifndef TF_FUSE_CC_CHANNEL_SHARED_MEMORY_COPY_THREADS_H_
#define TF_FUSE_CC_CHANNEL_SHARED_MEMORY_COPY_THREADS_H_

#include <functional>

namespace tf_fuse {

void ScheduleCopy(std::function<void()> copy);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_SHARED_MEMORY_COPY_THREADS_H_
