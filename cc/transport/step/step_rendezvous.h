// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The rendezvous of one step, without fused receives: who waits for its begin,
// what ends with it, and its calls to other tasks. fuse_rendezvous.h adds the
// receives; the sending and the receiving side know a step by this class.

#ifndef TF_FUSE_CC_TRANSPORT_STEP_STEP_RENDEZVOUS_H_
#define TF_FUSE_CC_TRANSPORT_STEP_STEP_RENDEZVOUS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/any.pb.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

class ChunkClient;
class Parcel;
class PartialSends;
class RecvCall;

class StepRendezvous : public tensorflow::BaseRemoteRendezvous {
 public:
  StepRendezvous(const tensorflow::WorkerEnv* env, int64_t step_id);

  const tensorflow::WorkerEnv* env() const { return env_; }
  int64_t step_id() const { return step_id_; }

  // Sends a request of ours for the tensors of a task; an abort or a
  // cancellation reaches it. A large answer may come by a data channel. Calls
  // `done` exactly once, perhaps on this thread, with the answer and the id
  // that the request had.
  using CallDone =
      std::function<void(const absl::Status&, const tensorflow::Tensor& frame,
                         int64_t request_id)>;
  // Called before the request is sent, unless it cannot be.
  using CallSent = std::function<void(
      std::shared_ptr<tensorflow::WorkerCacheInterface>, int64_t request_id)>;
  struct CallTarget {
    std::string task;
    uint64_t send_device_incarnation;
    std::string recv_device;
    std::string rendezvous_key;
    size_t tensors;
  };
  void StartCall(const CallTarget& target, const Args& args,
                 google::protobuf::Any options, CallDone done,
                 CallSent on_sent = nullptr);

  // Receives one tensor by an RPC of its own.
  void RecvFromRemoteAsync(const ParsedKey& parsed, const Args& args,
                           DoneCallback done) override;

  // A frame of this step waits at a data channel: it is dropped when the step
  // is aborted. The parcel holds a reference to the step.
  void AddParcel(const std::shared_ptr<Parcel>& parcel);

  // Runs `closure` by ScheduleAfterOthers(), with a reference held.
  void Schedule(std::function<void()> closure);

  // What peers have asked for by parts. REQUIRES: the step has begun.
  virtual std::shared_ptr<PartialSends> partial_sends() = 0;

  // Runs `start` once the step has begun here, perhaps at once; with the error
  // when it is aborted before. True if it did not run at once. A request may
  // come earlier than the step that it belongs to, and that step may never
  // come: TensorFlow's own way of waiting for it cannot be ended. `key`
  // identifies the waiter.
  using StepStarted = std::function<void(const absl::Status&)>;
  bool WhenInitialized(const void* key, StepStarted start);
  // Drops the waiter without running it; nothing if it ran already. The caller
  // must hold a reference.
  void StopWaiting(const void* key);

  // OK until the step is aborted. Whoever starts receives looks at it once more
  // afterwards: TensorFlow loses one that is started while it aborts.
  absl::Status abort_status();

  // Where the peers of the step are; null unless it has begun and goes on.
  std::shared_ptr<tensorflow::WorkerCacheInterface> workers();

  absl::Status Initialize(tensorflow::WorkerSession* session) override;
  void StartAbort(const absl::Status& status) override;

 protected:
  ~StepRendezvous() override;

  // Aborts what partial_sends() holds, if it was called before.
  virtual void AbortPartialSends(const absl::Status& status) = 0;

 private:
  // Makes an abort of the step or a cancellation reach the call. False if there
  // was one already: the call is over, with its status.
  bool Register(RecvCall* call, const Args& args);
  // The same without the release of the call's worker.
  bool List(tensorflow::BaseRecvTensorCall* call, const Args& args);
  // A frame has come from a task on the host's memory: opens channels for those
  // that follow.
  void OpenChannels(const RecvCall& call, const CallTarget& target,
                    bool is_known);
  // What StartCall() does with an answer that names a parcel.
  void TakeParcel(std::shared_ptr<ChunkClient> client, const v1::Parcel& parcel,
                  size_t tensors, const Args& args, int64_t request_id,
                  CallDone done);

  // Keeps the rendezvous alive: the cache of steps holds no reference.
  struct Waiter {
    StepStarted start;
    tsl::core::RefCountPtr<tensorflow::Rendezvous> self;
  };
  using Waiters = absl::flat_hash_map<const void*, Waiter>;
  void RunWaiters(const absl::Status& status);

  absl::Mutex waiters_mu_;
  Waiters waiters_ ABSL_GUARDED_BY(waiters_mu_);
  absl::Status abort_status_ ABSL_GUARDED_BY(waiters_mu_);
  bool has_begun_ ABSL_GUARDED_BY(waiters_mu_) = false;
  // The session itself may end before this step, if it is only held by a
  // request that nobody has cancelled.
  std::shared_ptr<tensorflow::WorkerCacheInterface> workers_
      ABSL_GUARDED_BY(waiters_mu_);

  absl::Mutex parcels_mu_;
  // One that was taken or dropped holds no reference to the step.
  std::vector<std::shared_ptr<Parcel>> parcels_ ABSL_GUARDED_BY(parcels_mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_STEP_STEP_RENDEZVOUS_H_
