// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/fuse_rendezvous.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/platform/logging.h"
#include "transport/fuse_status.h"
#include "transport/metrics.h"
#include "transport/plain_peers.h"
#include "transport/recv_call.h"
#include "transport/watched_recv.h"

namespace tf_fuse {

using tensorflow::Device;
using tensorflow::DeviceNameUtils;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

// The state of one fused receive, shared by its RPCs.
struct FuseRendezvous::FusedRecv : public WatchedRecv {
  FusedRecv(const tensorflow::WorkerEnv* env, int64_t step_id,
            std::shared_ptr<const FusedKeys> keys)
      : WatchedRecv(env, step_id, keys), keys(std::move(keys)) {}

  const std::shared_ptr<const FusedKeys> keys;
  tensorflow::FrameAndIter frame_iter;
  Args args;
  FusedDone done;
  std::vector<Slot> slots;
  // Of RecvSingles.
  std::atomic<size_t> remaining{0};
  absl::Mutex mu;
  absl::Status status ABSL_GUARDED_BY(mu);
  std::vector<size_t> failed ABSL_GUARDED_BY(mu);

  void Fail(const absl::Status& error, const std::vector<size_t>& indices) {
    Metrics::Get()->errors.fetch_add(1);
    WatchEnded(error.code());
    done(NameFailedTensors(error, *keys, indices), {});
  }
};

FuseRendezvous::FuseRendezvous(const tensorflow::WorkerEnv* env,
                               int64_t step_id)
    : BaseRemoteRendezvous(env, step_id) {
  Metrics::Get()->open_steps.fetch_add(1);
}

FuseRendezvous::~FuseRendezvous() {
  absl::MutexLock lock(&waiters_mu_);
  if (abort_status_.ok()) Metrics::Get()->open_steps.fetch_sub(1);
}

bool FuseRendezvous::WhenInitialized(const void* key, StepStarted start) {
  absl::Status status;
  {
    absl::MutexLock lock(&waiters_mu_);
    if (abort_status_.ok() && !is_initialized()) {
      waiters_[key] = {std::move(start), tsl::core::GetNewRef(this)};
      return true;
    }
    status = abort_status_;
  }
  start(status);
  return false;
}

void FuseRendezvous::StopWaiting(const void* key) {
  Waiters::node_type dropped;  // Destroyed without the lock.
  absl::MutexLock lock(&waiters_mu_);
  dropped = waiters_.extract(key);
}

void FuseRendezvous::RunWaiters(const absl::Status& status) {
  Waiters waiters;
  {
    absl::MutexLock lock(&waiters_mu_);
    waiters.swap(waiters_);
  }
  for (auto& [key, waiter] : waiters) waiter.start(status);
}

absl::Status FuseRendezvous::Initialize(tensorflow::WorkerSession* session) {
  const absl::Status status = BaseRemoteRendezvous::Initialize(session);
  if (is_initialized()) RunWaiters(absl::OkStatus());
  return status;
}

void FuseRendezvous::StartAbort(const absl::Status& status) {
  // A waiter's reference may be the last one.
  const auto self = tsl::core::GetNewRef(this);
  {
    absl::MutexLock lock(&waiters_mu_);
    // TensorFlow keeps what was aborted for ever, so that it is still found:
    // the end of such a step is its abort, not its destruction.
    if (abort_status_.ok()) Metrics::Get()->open_steps.fetch_sub(1);
    abort_status_.Update(status);
  }
  BaseRemoteRendezvous::StartAbort(status);
  RunWaiters(status);
}

absl::Status FuseRendezvous::abort_status() {
  absl::MutexLock lock(&waiters_mu_);
  return abort_status_;
}

void FuseRendezvous::RecvFusedAsync(std::shared_ptr<const FusedKeys> keys,
                                    const tensorflow::FrameAndIter& frame_iter,
                                    const Args& args, FusedDone done) {
  auto recv = std::make_shared<FusedRecv>(env_, step_id_, std::move(keys));
  recv->frame_iter = frame_iter;
  recv->args = args;
  recv->done = std::move(done);
  recv->StartWatch();
  const FusedKeys& k = *recv->keys;

  if (session() == nullptr) {
    recv->Fail(absl::InternalError("fused receive before initialization"),
               AllIndices(k));
    return;
  }
  if (PlainPeers::Get()->Contains(k.send_task, k.send_device_incarnation)) {
    Metrics::Get()->fallbacks.fetch_add(1, std::memory_order_relaxed);
    recv->slots.resize(k.tensor_names.size());
    RecvSingles(std::move(recv), AllIndices(k));
    return;
  }
  SendRequest(std::move(recv));
}

void FuseRendezvous::SendRequest(std::shared_ptr<FusedRecv> recv) {
  const FusedKeys& k = *recv->keys;
  const Args& args = recv->args;
  tensorflow::WorkerSession* session = this->session();
  Device* device = nullptr;
  absl::Status status =
      session->device_mgr()->LookupDevice(k.recv_device, &device);
  std::unique_ptr<RecvCall> call;
  if (status.ok()) {
    auto worker_cache = session->GetSharedWorkerCache();
    call = std::make_unique<RecvCall>(worker_cache, k.send_task, step_id_,
                                      device, args.alloc_attrs);
    status = call->Init();
    recv->RequestSent(std::move(worker_cache), call->request()->request_id());
  }
  if (!status.ok()) {
    recv->Fail(status, AllIndices(k));
    return;
  }
  call->request()->set_rendezvous_key(kFusedRendezvousKey);
  auto* options = call->request()->mutable_transport_options();
  if (recv->frame_iter == tensorflow::FrameAndIter(0, 0) && !recv->traced()) {
    options->set_type_url(kFusedRequestTypeUrl);
    options->set_value(k.root_request);
  } else {
    options->PackFrom(BuildRequest(k, recv->frame_iter, recv->traced()));
  }

  // RegisterCall makes an abort or a cancellation reach the RPC.
  RegisterCall(call.get(), args);
  if (!call->status().ok()) {
    DeregisterCall(call.get(), args);
    call->ReleaseWorker();
    recv->Fail(call->status(), AllIndices(k));
    return;
  }
  Ref();
  RecvCall* raw_call = call.release();
  raw_call->Start([this, recv = std::move(recv), raw_call]() mutable {
    std::unique_ptr<RecvCall> call(raw_call);
    DeregisterCall(call.get(), recv->args);
    // The session may go away as soon as `done` ran: release first.
    call->ReleaseWorker();
    OnFrame(std::move(recv), call->status(), call->tensor());
    call.reset();
    Unref();
  });
}

void FuseRendezvous::OnFrame(std::shared_ptr<FusedRecv> recv,
                             const absl::Status& status, const Tensor& frame) {
  const FusedKeys& keys = *recv->keys;
  if (IsAnswerOfPlainPeer(status)) {
    if (PlainPeers::Get()->Insert(keys.send_task,
                                  keys.send_device_incarnation)) {
      LOG(WARNING) << "tf_fuse: " << keys.send_task
                   << " does not serve fused receives (it runs the protocol "
                      "'grpc', not 'grpc+fuse'); its tensors are received one "
                      "by one from now on.";
    }
    Metrics::Get()->fallbacks.fetch_add(1, std::memory_order_relaxed);
    recv->slots.resize(keys.tensor_names.size());
    RecvSingles(std::move(recv), AllIndices(keys));
    return;
  }
  if (IsPostponed(status)) {
    SendRequest(std::move(recv));
    return;
  }
  if (!status.ok()) {
    recv->Fail(status, FailedIndices(status, keys));
    return;
  }
  Metrics* metrics = Metrics::Get();
  metrics->fused_rpcs.fetch_add(1, std::memory_order_relaxed);
  metrics->tensors.fetch_add(keys.tensor_names.size(),
                             std::memory_order_relaxed);
  metrics->bytes.fetch_add(frame.TotalBytes(), std::memory_order_relaxed);
  std::vector<int64_t> waits_micros;
  const absl::Status unpacked =
      UnpackFrame(frame, keys.types, keys.copy_out, &recv->slots,
                  recv->traced() ? &waits_micros : nullptr);
  if (recv->traced()) {
    recv->FrameArrived(frame.TotalBytes(), std::move(waits_micros));
  }
  if (!unpacked.ok()) {
    recv->Fail(unpacked, AllIndices(keys));
    return;
  }
  std::vector<size_t> beside;
  for (size_t i = 0; i < recv->slots.size(); ++i) {
    if (recv->slots[i].beside) beside.push_back(i);
  }
  if (beside.empty()) {
    recv->WatchEnded();
    recv->done(absl::OkStatus(), std::move(recv->slots));
    return;
  }
  metrics->beside_tensors.fetch_add(beside.size(), std::memory_order_relaxed);
  RecvSingles(std::move(recv), beside);
}

void FuseRendezvous::RecvSingles(std::shared_ptr<FusedRecv> recv,
                                 const std::vector<size_t>& indices) {
  recv->remaining = indices.size();
  recv->SinglesSent(indices);
  auto finish_one = [recv] {
    if (recv->remaining.fetch_sub(1) != 1) return;
    absl::Status status;
    std::vector<size_t> failed;
    {
      absl::MutexLock lock(&recv->mu);
      status = recv->status;
      failed = recv->failed;
    }
    if (status.ok()) {
      recv->WatchEnded();
      recv->done(status, std::move(recv->slots));
    } else {
      std::sort(failed.begin(), failed.end());
      recv->Fail(status, failed);
    }
  };
  for (const size_t index : indices) {
    ParsedKey parsed;
    const absl::Status status =
        ParseSlotKey(*recv->keys, index, recv->frame_iter, &parsed);
    auto on_tensor = [recv, index, finish_one](
                         const absl::Status& status, const Args&, const Args&,
                         const Tensor& tensor, bool is_dead) {
      recv->SingleArrived(index, tensor.TotalBytes());
      if (status.ok()) {
        Slot& slot = recv->slots[index];
        slot.tensor = tensor;
        slot.is_dead = is_dead;
        slot.beside = false;
      } else {
        absl::MutexLock lock(&recv->mu);
        recv->status.Update(status);
        recv->failed.push_back(index);
      }
      finish_one();
    };
    if (status.ok()) {
      RecvFromRemoteAsync(parsed, recv->args, std::move(on_tensor));
    } else {
      on_tensor(status, Args(), Args(), Tensor(), false);
    }
  }
}

void FuseRendezvous::RecvFromRemoteAsync(const ParsedKey& parsed,
                                         const Args& args, DoneCallback done) {
  std::string task;
  std::string device_name;
  absl::Status status;
  if (!DeviceNameUtils::SplitDeviceName(parsed.src_device, &task,
                                        &device_name)) {
    status = absl::InternalError(
        absl::StrCat(parsed.src_device, " is invalid remote source device."));
  }
  tensorflow::WorkerSession* session = this->session();
  if (status.ok() && session == nullptr) {
    status = absl::InternalError("receive before initialization");
  }
  Device* device = nullptr;
  std::unique_ptr<RecvCall> call;
  if (status.ok()) {
    status = session->device_mgr()->LookupDevice(parsed.dst_device, &device);
  }
  if (status.ok()) {
    call = std::make_unique<RecvCall>(session->GetSharedWorkerCache(), task,
                                      step_id_, device, args.alloc_attrs);
    status = call->Init();
  }
  if (!status.ok()) {
    done(status, Args(), args, Tensor(), false);
    return;
  }
  call->request()->set_rendezvous_key(std::string(parsed.FullKey()));
  RegisterCall(call.get(), args);
  if (!call->status().ok()) {
    DeregisterCall(call.get(), args);
    call->ReleaseWorker();
    done(call->status(), Args(), args, Tensor(), false);
    return;
  }
  Metrics::Get()->single_rpcs.fetch_add(1, std::memory_order_relaxed);
  Ref();
  RecvCall* raw_call = call.release();
  raw_call->Start([this, raw_call, args, done = std::move(done)] {
    std::unique_ptr<RecvCall> call(raw_call);
    DeregisterCall(call.get(), args);
    call->ReleaseWorker();
    done(call->status(), Args(), args, call->tensor(), call->is_dead());
    call.reset();
    Unref();
  });
}

FuseRendezvousMgr::FuseRendezvousMgr(const tensorflow::WorkerEnv* env)
    : BaseRendezvousMgr(env) {}

tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous>
FuseRendezvousMgr::Create(int64_t step_id, const tensorflow::WorkerEnv* env) {
  return tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous>(
      new FuseRendezvous(env, step_id));
}

}  // namespace tf_fuse
