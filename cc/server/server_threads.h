// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The threads of a server.
//
// TensorFlow's server schedules whatever it is asked on the threads that run
// operations, as many as the machine has cores. Here
// * a coordinator's calls have threads of their own: such a call keeps its
//   thread until the function has ended, and with as many calls at a time as
//   there are cores, nothing would be left to answer the servers;
// * the thread that read a request for a tensor answers it: what is to be done
//   is short, and to wake another thread costs as much;
// * threads that wait do not spin: a task of parameter servers waits most of
//   the time, and tasks share cores.

#ifndef TF_FUSE_CC_SERVER_SERVER_THREADS_H_
#define TF_FUSE_CC_SERVER_SERVER_THREADS_H_

#include <deque>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_cache.h"
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

// Runs what TensorFlow's server schedules. Thread-safe.
class ServerThreads : public tensorflow::thread::ThreadPoolInterface {
 public:
  // `threads`: how many run operations.
  ServerThreads(tensorflow::Env* env, int threads);

  void Schedule(std::function<void()> function) override;
  void ScheduleWithHint(std::function<void()> function, int start,
                        int limit) override;
  void Cancel() override;
  int NumThreads() const override;
  int CurrentThreadId() const override;

 private:
  // Runs `call`, and then those that wait.
  void Run(std::function<void()> call);

  tensorflow::thread::ThreadPool operations_;
  absl::Mutex mu_;
  int threads_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  tensorflow::UnboundedWorkQueue queue_;
};

// Schedules, on threads that are ServerThreads, what is to run on those for a
// coordinator's calls.
void ScheduleEagerCall(tensorflow::thread::ThreadPool* threads,
                       std::function<void()> call);

// Lets the threads that take other tasks' answers act on them. TensorFlow hands
// each answer to another thread, which reads it and calls what waits for it:
// both are short, since operations start on threads of their own. Call it
// before the server reaches another task.
void AnswerOnCallingThread(tensorflow::GrpcWorkerEnv* env);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_SERVER_SERVER_THREADS_H_
