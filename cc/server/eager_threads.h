// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Threads for the calls of coordinators, so that those that run operations stay
// free.
//
// TensorFlow's server answers eager calls on the threads that run operations
// and answer workers, as many as the machine has cores. A coordinator's call of
// a function keeps its thread until the function has ended: with as many calls
// at a time as there are cores, none ends, since nothing is left to answer the
// servers. Here such calls have threads of their own.

#ifndef TF_FUSE_CC_SERVER_EAGER_THREADS_H_
#define TF_FUSE_CC_SERVER_EAGER_THREADS_H_

#include <deque>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/threadpool_interface.h"
#include "tensorflow/core/platform/unbounded_work_queue.h"

namespace tf_fuse {

// Marks the thread of a server that takes eager calls. TensorFlow gives no
// other way to tell what it schedules.
class ServerEnv : public tensorflow::EnvWrapper {
 public:
  using EnvWrapper::EnvWrapper;

  tensorflow::Thread* StartThread(const tensorflow::ThreadOptions& options,
                                  const std::string& name,
                                  absl::AnyInvocable<void()> function) override;
};

// Runs what such a thread schedules on threads of its own, and all else on
// TensorFlow's. Thread-safe.
class ServerThreads : public tensorflow::thread::ThreadPoolInterface {
 public:
  // `others` must outlive this.
  ServerThreads(tensorflow::Env* env, tensorflow::thread::ThreadPool* others);

  void Schedule(std::function<void()> function) override;
  void ScheduleWithHint(std::function<void()> function, int start,
                        int limit) override;
  void Cancel() override;
  int NumThreads() const override;
  int CurrentThreadId() const override;

 private:
  // Runs `call`, and then those that wait.
  void Run(std::function<void()> call);

  tensorflow::thread::ThreadPool* const others_;
  absl::Mutex mu_;
  int threads_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  tensorflow::UnboundedWorkQueue queue_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_SERVER_EAGER_THREADS_H_
