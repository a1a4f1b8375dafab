// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Threads for what is to be done once, for many operations that become ready
// together, and for what must not be done here.

#ifndef TF_FUSE_CC_BASE_EXECUTORS_H_
#define TF_FUSE_CC_BASE_EXECUTORS_H_

#include <functional>

namespace tf_fuse {

// Runs `closure` at once, but on a thread of our own, so that the operations
// that are ready now run meanwhile. A thread of TensorFlow's pool runs what it
// has scheduled itself first, and so before all of them.
void ScheduleAfterOthers(std::function<void()> closure);

// Runs `closure` on another thread than this one, whatever waits there already;
// a pool whose queue is full runs it at once. For who holds a lock that
// `closure` takes.
void ScheduleElsewhere(std::function<void()> closure);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_BASE_EXECUTORS_H_
