// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow is not instrumented: ThreadSanitizer sees neither the locks that
// it takes for us (absl::Mutex is in its library) nor those in its own objects,
// and would take what they order for races. Each function here stands before
// one of them (the linker's --wrap, in programs.cmake), and says what it
// orders: no more than its lock does. Calls from TensorFlow to itself are not
// seen.

#include <functional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "sanitizer/tsan_interface.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/lib/core/threadpool.h"

using absl::Mutex;
using tensorflow::BaseRecvTensorCall;
using tensorflow::BaseRemoteRendezvous;
using tensorflow::CallOptions;
using tensorflow::Rendezvous;
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

WRAP("_ZN3tsl6thread10ThreadPool8ScheduleESt8functionIFvvEE", void, Schedule,
     ThreadPool* pool, std::function<void()> closure) {
  auto* shared = new std::function<void()>(std::move(closure));
  __tsan_release(shared);
  RealSchedule(pool, [shared] {
    __tsan_acquire(shared);
    (*shared)();
    delete shared;
  });
}

#define OPTIONS "_ZN3tsl11CallOptions"

WRAP(OPTIONS "17SetCancelCallbackESt8functionIFvvEE", void, SetCancelCallback,
     CallOptions* options, std::function<void()> cancel) {
  __tsan_release(options);
  RealSetCancelCallback(options, std::move(cancel));
  __tsan_acquire(options);
}

WRAP(OPTIONS "19ClearCancelCallbackEv", void, ClearCancelCallback,
     CallOptions* options) {
  RealClearCancelCallback(options);
  __tsan_acquire(options);
}

WRAP(OPTIONS "11StartCancelEv", void, StartCancel, CallOptions* options) {
  __tsan_acquire(options);
  RealStartCancel(options);
  __tsan_release(options);
}

#define RENDEZVOUS "_ZN10tensorflow20BaseRemoteRendezvous"
#define PARSED_KEY "ERKNS_19RendezvousInterface9ParsedKeyE"

WRAP(RENDEZVOUS "14RecvLocalAsync" PARSED_KEY
                "St8functionIFvRKN4absl12lts_202508146StatusERKNS1_4ArgsESD_"
                "RKNS_6TensorEbEE",
     void, RecvLocalAsync, BaseRemoteRendezvous* rendezvous,
     const Rendezvous::ParsedKey& key, Rendezvous::DoneCallback done) {
  __tsan_release(rendezvous);
  RealRecvLocalAsync(
      rendezvous, key,
      [rendezvous, done = std::move(done)](
          const absl::Status& status, const Rendezvous::Args& send_args,
          const Rendezvous::Args& recv_args, const tensorflow::Tensor& tensor,
          bool is_dead) {
        __tsan_acquire(rendezvous);
        done(status, send_args, recv_args, tensor, is_dead);
      });
}

WRAP(RENDEZVOUS "4Send" PARSED_KEY "RKNS1_4ArgsERKNS_6TensorEb", absl::Status,
     Send, BaseRemoteRendezvous* rendezvous, const Rendezvous::ParsedKey& key,
     const Rendezvous::Args& args, const tensorflow::Tensor& tensor,
     bool is_dead) {
  __tsan_release(rendezvous);
  return RealSend(rendezvous, key, args, tensor, is_dead);
}

WRAP(RENDEZVOUS
     "12RegisterCallEPNS_18BaseRecvTensorCallE"
     "RKNS_19RendezvousInterface4ArgsE",
     void, RegisterCall, BaseRemoteRendezvous* rendezvous,
     BaseRecvTensorCall* call, const Rendezvous::Args& args) {
  __tsan_release(rendezvous);
  RealRegisterCall(rendezvous, call, args);
}

WRAP(RENDEZVOUS
     "14DeregisterCallEPNS_18BaseRecvTensorCallE"
     "RKNS_19RendezvousInterface4ArgsE",
     void, DeregisterCall, BaseRemoteRendezvous* rendezvous,
     BaseRecvTensorCall* call, const Rendezvous::Args& args) {
  RealDeregisterCall(rendezvous, call, args);
  __tsan_acquire(rendezvous);
}

WRAP(RENDEZVOUS "10StartAbortERKN4absl12lts_202508146StatusE", void, StartAbort,
     BaseRemoteRendezvous* rendezvous, const absl::Status& status) {
  __tsan_acquire(rendezvous);
  RealStartAbort(rendezvous, status);
  __tsan_release(rendezvous);
}
