// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "server/server_threads.h"

#include <cfenv>
#include <cstring>
#include <memory>
#include <typeinfo>
#include <utility>

#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/setround.h"

namespace tf_fuse {

namespace {

// The name that GrpcServer::Start() gives its thread.
constexpr char kEagerThread[] = "TF_eager_service";
// Calls beyond these wait: a peer must not be able to make threads without end.
constexpr int kMaxThreads = 128;

// A part of the type's name of what GrpcWorkerService schedules for RecvTensor.
constexpr char kRecvTensor[] = "RecvTensorHandler";

thread_local bool takes_eager_calls = false;

// Runs `function` with the floating-point numbers of TensorFlow's thread pools,
// in which denormal ones are zero: a collective may reduce in it.
void RunAsInPool(const std::function<void()>& function) {
  tensorflow::port::ScopedFlushDenormal flush;
  tensorflow::port::ScopedSetRound round(FE_TONEAREST);
  function();
}

// Runs what it is given at once.
class CallingThread : public tensorflow::thread::ThreadPoolInterface {
 public:
  void Schedule(std::function<void()> function) override {
    RunAsInPool(function);
  }
  void ScheduleWithHint(std::function<void()> function, int start,
                        int limit) override {
    RunAsInPool(function);
  }
  void Cancel() override {}
  int NumThreads() const override { return 1; }
  int CurrentThreadId() const override { return -1; }
};

bool AnswersRecvTensor(const std::function<void()>& function) {
  return std::strstr(function.target_type().name(), kRecvTensor) != nullptr;
}

}  // namespace

// (The names in an explicit instantiation may be private.)
template <auto kPool>
struct PoolOf {
  friend std::unique_ptr<tensorflow::thread::ThreadPool>& CallbackPool(
      tensorflow::GrpcWorkerEnv* env) {
    return env->*kPool;
  }
};

std::unique_ptr<tensorflow::thread::ThreadPool>& CallbackPool(
    tensorflow::GrpcWorkerEnv* env);
template struct PoolOf<&tensorflow::GrpcWorkerEnv::threadpool_>;

void AnswerOnCallingThread(tensorflow::GrpcWorkerEnv* env) {
  static auto* const calling = new CallingThread;  // A pool does not own it.
  CallbackPool(env) = std::make_unique<tensorflow::thread::ThreadPool>(calling);
}

void ScheduleEagerCall(tensorflow::thread::ThreadPool* threads,
                       std::function<void()> call) {
  takes_eager_calls = true;
  threads->Schedule(std::move(call));
  takes_eager_calls = false;
}

tensorflow::Thread* ServerEnv::StartThread(
    const tensorflow::ThreadOptions& options, const std::string& name,
    absl::AnyInvocable<void()> function) {
  if (name != kEagerThread) {
    return EnvWrapper::StartThread(options, name, std::move(function));
  }
  return EnvWrapper::StartThread(options, name,
                                 [function = std::move(function)]() mutable {
                                   takes_eager_calls = true;
                                   function();
                                 });
}

ServerThreads::ServerThreads(tensorflow::Env* env, int threads)
    : operations_(env, tensorflow::ThreadOptions(), "tf_fuse_operations",
                  threads, /*low_latency_hint=*/false),
      queue_(env, "tf_fuse_eager_calls") {}

void ServerThreads::Schedule(std::function<void()> function) {
  if (!takes_eager_calls) {
    if (AnswersRecvTensor(function)) return RunAsInPool(function);
    operations_.Schedule(std::move(function));
    return;
  }
  {
    absl::MutexLock lock(&mu_);
    if (threads_ == kMaxThreads) {
      waiting_.push_back(std::move(function));
      return;
    }
    ++threads_;
  }
  queue_.Schedule([this, function = std::move(function)]() mutable {
    Run(std::move(function));
  });
}

void ServerThreads::Run(std::function<void()> call) {
  while (call != nullptr) {
    call();
    call = nullptr;
    absl::MutexLock lock(&mu_);
    if (waiting_.empty()) {
      --threads_;
    } else {
      call = std::move(waiting_.front());
      waiting_.pop_front();
    }
  }
}

void ServerThreads::ScheduleWithHint(std::function<void()> function, int start,
                                     int limit) {
  operations_.ScheduleWithHint(std::move(function), start, limit);
}

void ServerThreads::Cancel() {}

int ServerThreads::NumThreads() const { return operations_.NumThreads(); }

int ServerThreads::CurrentThreadId() const {
  return operations_.CurrentThreadId();
}

}  // namespace tf_fuse
