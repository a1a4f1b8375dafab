// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow is not instrumented: ThreadSanitizer sees neither the locks that
// it takes for us (absl::Mutex is in its library) nor those in its own objects,
// and would take what they order for races. Each function here stands before
// one of them (the linker's --wrap, in programs.cmake), and says what it
// orders: no more than its lock does. Calls from TensorFlow to itself are not
// seen.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/synchronization/internal/kernel_timeout.h"
#include "absl/synchronization/mutex.h"
#include "sanitizer/tsan_interface.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/unbounded_work_queue.h"
#include "transport/fuse_rendezvous.h"

using absl::Mutex;
using tensorflow::BaseRecvTensorCall;
using tensorflow::BaseRemoteRendezvous;
using tensorflow::CallOptions;
using tensorflow::GrpcWorker;
using tensorflow::Rendezvous;
using tsl::UnboundedWorkQueue;
using tsl::thread::ThreadPool;

// WRAP(symbol, result, name, parameters): declares the real function and ours.
// (Visible: the linker finds TensorFlow's references, too, and wants them so.)
#define WRAP(symbol, result, name, ...)                        \
  result Real##name(__VA_ARGS__) asm("__real_" symbol);        \
  __attribute__((visibility("default"))) result Wrapped##name( \
      __VA_ARGS__) asm("__wrap_" symbol);                      \
  result Wrapped##name(__VA_ARGS__)

#define MUTEX "_ZN4absl12lts_202508145Mutex"

WRAP(MUTEX "4lockEv", void, Lock, Mutex* mu) {
  __tsan_mutex_pre_lock(mu, 0);
  RealLock(mu);
  __tsan_mutex_post_lock(mu, 0, 0);
}

WRAP(MUTEX "6unlockEv", void, Unlock, Mutex* mu) {
  __tsan_mutex_pre_unlock(mu, 0);
  RealUnlock(mu);
  __tsan_mutex_post_unlock(mu, 0);
}

WRAP(MUTEX "11lock_sharedEv", void, LockShared, Mutex* mu) {
  __tsan_mutex_pre_lock(mu, __tsan_mutex_read_lock);
  RealLockShared(mu);
  __tsan_mutex_post_lock(mu, __tsan_mutex_read_lock, 0);
}

WRAP(MUTEX "13unlock_sharedEv", void, UnlockShared, Mutex* mu) {
  __tsan_mutex_pre_unlock(mu, __tsan_mutex_read_lock);
  RealUnlockShared(mu);
  __tsan_mutex_post_unlock(mu, __tsan_mutex_read_lock);
}

// Waits without the lock, and returns with it.
WRAP(MUTEX
     "11AwaitCommonERKNS0_9ConditionENS0_24synchronization_internal13Kernel"
     "TimeoutE",
     bool, Await, Mutex* mu, const absl::Condition& condition,
     absl::synchronization_internal::KernelTimeout limit) {
  __tsan_mutex_pre_unlock(mu, 0);
  __tsan_mutex_post_unlock(mu, 0);
  const bool result = RealAwait(mu, condition, limit);
  __tsan_mutex_pre_lock(mu, 0);
  __tsan_mutex_post_lock(mu, 0, 0);
  return result;
}

// What runs `closure` on another thread.
std::function<void()> Handed(std::function<void()> closure) {
  auto* shared = new std::function<void()>(std::move(closure));
  __tsan_release(shared);
  return [shared] {
    __tsan_acquire(shared);
    (*shared)();
    delete shared;
  };
}

WRAP("_ZN3tsl6thread10ThreadPool8ScheduleESt8functionIFvvEE", void, Schedule,
     ThreadPool* pool, std::function<void()> closure) {
  RealSchedule(pool, Handed(std::move(closure)));
}

WRAP("_ZN3tsl18UnboundedWorkQueue8ScheduleESt8functionIFvvEE", void,
     ScheduleUnbounded, UnboundedWorkQueue* queue,
     std::function<void()> closure) {
  RealScheduleUnbounded(queue, Handed(std::move(closure)));
}

// What stands before an object of TensorFlow. In many parts, so that their
// locks order little that TensorFlow's do not.
template <typename Key, typename Value>
class Table {
 public:
  // Returns what was there.
  std::unique_ptr<Value> Exchange(Key* key, std::unique_ptr<Value> value) {
    Part* part = &parts_[reinterpret_cast<uintptr_t>(key) / 16 % kParts];
    std::lock_guard<std::mutex> lock(part->mu);
    auto found = part->values.try_emplace(key).first;
    found->second.swap(value);
    if (found->second == nullptr) part->values.erase(found);
    return value;
  }
  std::unique_ptr<Value> Take(Key* key) { return Exchange(key, nullptr); }
  // Never destroyed: TensorFlow's threads may still use it at the end.
  static Table* Get() {
    static auto* table = new Table;
    return table;
  }

 private:
  struct Part {
    std::mutex mu;
    std::unordered_map<Key*, std::unique_ptr<Value>> values;
  };
  static constexpr size_t kParts = 1021;

  Part parts_[kParts];
};

// Functions that are given to TensorFlow hold one pointer each: such a function
// is moved by TensorFlow's code alone, while a larger one would be read, by
// ours, before it can say what it is ordered after.

// Called with the lock held that ClearCancelCallback() takes.
struct CancelCallback {
  std::function<void()> cancel;

  void Run() {
    __tsan_acquire(this);
    cancel();
    __tsan_release(this);
  }
};
using CancelCallbacks = Table<CallOptions, CancelCallback>;

#define OPTIONS "_ZN3tsl11CallOptions"

WRAP(OPTIONS "17SetCancelCallbackESt8functionIFvvEE", void, SetCancelCallback,
     CallOptions* options, std::function<void()> cancel) {
  auto callback = std::make_unique<CancelCallback>();
  callback->cancel = std::move(cancel);
  CancelCallback* const raw = callback.get();
  const auto previous =
      CancelCallbacks::Get()->Exchange(options, std::move(callback));
  __tsan_release(raw);
  RealSetCancelCallback(options, [raw] { raw->Run(); });
  if (previous != nullptr) __tsan_acquire(previous.get());
}

WRAP(OPTIONS "19ClearCancelCallbackEv", void, ClearCancelCallback,
     CallOptions* options) {
  const auto callback = CancelCallbacks::Get()->Take(options);
  RealClearCancelCallback(options);
  if (callback != nullptr) __tsan_acquire(callback.get());
}

#define RENDEZVOUS "_ZN10tensorflow20BaseRemoteRendezvous"
#define PARSED_KEY "ERKNS_19RendezvousInterface9ParsedKeyE"

struct LocalRecv {
  BaseRemoteRendezvous* rendezvous;
  Rendezvous::DoneCallback done;
};

WRAP(RENDEZVOUS "14RecvLocalAsync" PARSED_KEY
                "St8functionIFvRKN4absl12lts_202508146StatusERKNS1_4ArgsESD_"
                "RKNS_6TensorEbEE",
     void, RecvLocalAsync, BaseRemoteRendezvous* rendezvous,
     const Rendezvous::ParsedKey& key, Rendezvous::DoneCallback done) {
  auto* recv = new LocalRecv{rendezvous, std::move(done)};
  __tsan_release(recv);
  RealRecvLocalAsync(
      rendezvous, key,
      [recv](const absl::Status& status, const Rendezvous::Args& send_args,
             const Rendezvous::Args& recv_args,
             const tensorflow::Tensor& tensor, bool is_dead) {
        __tsan_acquire(recv);
        const std::unique_ptr<LocalRecv> owned(recv);
        // What was sent, or why the step was aborted.
        __tsan_acquire(owned->rendezvous);
        owned->done(status, send_args, recv_args, tensor, is_dead);
      });
}

// TensorFlow's handler of single receives.
WRAP(
    "_ZN10tensorflow10GrpcWorker19GrpcRecvTensorAsync"
    "EPN3tsl11CallOptionsEPKNS_17RecvTensorRequestEPN4grpc10ByteBufferE"
    "St8functionIFvRKN4absl12lts_202508146StatusEEE",
    void, RecvSingle, GrpcWorker* worker, CallOptions* options,
    const tensorflow::RecvTensorRequest* request, ::grpc::ByteBuffer* response,
    tensorflow::StatusCallback done) {
  auto* shared = new tensorflow::StatusCallback(std::move(done));
  __tsan_release(shared);
  RealRecvSingle(worker, options, request, response,
                 [shared](const absl::Status& status) {
                   __tsan_acquire(shared);
                   (*shared)(status);
                   delete shared;
                 });
}

WRAP(RENDEZVOUS "4Send" PARSED_KEY "RKNS1_4ArgsERKNS_6TensorEb", absl::Status,
     Send, BaseRemoteRendezvous* rendezvous, const Rendezvous::ParsedKey& key,
     const Rendezvous::Args& args, const tensorflow::Tensor& tensor,
     bool is_dead) {
  __tsan_release(rendezvous);
  return RealSend(rendezvous, key, args, tensor, is_dead);
}

// Set on a thread that aborts a step.
thread_local bool aborts_step = false;

// Stands before a call in TensorFlow's table: TensorFlow aborts a call with the
// locks held under which it was registered, and is removed.
//
// It looks whether the step is aborted, and then registers the call: an abort
// in between does not reach it. That is a short time; so here no abort does
// until the call is registered.
class WatchedCall : public BaseRecvTensorCall {
 public:
  WatchedCall(BaseRemoteRendezvous* rendezvous, BaseRecvTensorCall* call)
      : rendezvous_(rendezvous), call_(call) {}

  void Start(std::function<void()> recv_done) override {
    call_->Start(std::move(recv_done));
  }
  void Registered() { registered_ = true; }
  void StartAbort(const absl::Status& status) override {
    __tsan_acquire(this);
    if (aborts_step && !registered_) return;
    // Why the step was aborted.
    __tsan_acquire(rendezvous_);
    call_->StartAbort(status);
    __tsan_release(this);
  }
  absl::Status status() const override { return call_->status(); }

 private:
  BaseRemoteRendezvous* const rendezvous_;
  BaseRecvTensorCall* const call_;
  std::atomic<bool> registered_{false};
};

using WatchedCalls = Table<BaseRecvTensorCall, WatchedCall>;

WRAP(RENDEZVOUS
     "12RegisterCallEPNS_18BaseRecvTensorCallE"
     "RKNS_19RendezvousInterface4ArgsE",
     void, RegisterCall, BaseRemoteRendezvous* rendezvous,
     BaseRecvTensorCall* call, const Rendezvous::Args& args) {
  auto watched = std::make_unique<WatchedCall>(rendezvous, call);
  WatchedCall* const raw = watched.get();
  WatchedCalls::Get()->Exchange(call, std::move(watched));
  __tsan_release(raw);
  RealRegisterCall(rendezvous, raw, args);
  std::this_thread::yield();
  raw->Registered();
}

WRAP(RENDEZVOUS
     "14DeregisterCallEPNS_18BaseRecvTensorCallE"
     "RKNS_19RendezvousInterface4ArgsE",
     void, DeregisterCall, BaseRemoteRendezvous* rendezvous,
     BaseRecvTensorCall* call, const Rendezvous::Args& args) {
  const auto watched = WatchedCalls::Get()->Take(call);
  RealDeregisterCall(rendezvous, watched.get(), args);
  __tsan_acquire(watched.get());
}

WRAP(RENDEZVOUS "10StartAbortERKN4absl12lts_202508146StatusE", void, StartAbort,
     BaseRemoteRendezvous* rendezvous, const absl::Status& status) {
  __tsan_release(rendezvous);
  const bool aborts_another = std::exchange(aborts_step, true);
  RealStartAbort(rendezvous, status);
  aborts_step = aborts_another;
}

namespace tf_fuse {
namespace testing {
namespace {

// A step is made with the lock of the table held under which it is found.
class WatchedMgr : public FuseRendezvousMgr {
 public:
  using FuseRendezvousMgr::FuseRendezvousMgr;

  tsl::core::RefCountPtr<tensorflow::RemoteRendezvous> Find(
      int64_t step_id) override {
    auto step = FuseRendezvousMgr::Find(step_id);
    __tsan_acquire(step.get());
    return step;
  }
  void Cleanup(int64_t step_id) override {
    // The step that TensorFlow then finds, without us, and aborts.
    const auto step = Find(step_id);
    FuseRendezvousMgr::Cleanup(step_id);
  }

 protected:
  tsl::core::RefCountPtr<BaseRemoteRendezvous> Create(
      int64_t step_id, const tensorflow::WorkerEnv* env) override {
    auto step = FuseRendezvousMgr::Create(step_id, env);
    __tsan_release(static_cast<tensorflow::RemoteRendezvous*>(step.get()));
    return step;
  }
};

}  // namespace

std::unique_ptr<FuseRendezvousMgr> MakeWatchedMgr(
    const tensorflow::WorkerEnv* env) {
  return std::make_unique<WatchedMgr>(env);
}

}  // namespace testing
}  // namespace tf_fuse
