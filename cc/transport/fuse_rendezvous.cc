// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/fuse_rendezvous.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "collectives/parcel.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/platform/status.h"
#include "transport/after_others.h"
#include "transport/dynamic_recv.h"
#include "transport/fuse_status.h"
#include "transport/limits.h"
#include "transport/metrics.h"
#include "transport/parcel_call.h"
#include "transport/partial_sends.h"
#include "transport/peer_channels.h"
#include "transport/plain_peers.h"
#include "transport/recv_call.h"
#include "transport/stall_report.h"
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

namespace {

// Says in a serialized request that its answer may come by a channel. (Of a
// message, parts may be serialized one after the other.)
void OfferChannel(uint64_t number, std::string* request) {
  v1::FuseRecvTensorRequest offer;
  offer.set_channel(number);
  offer.set_channel_bytes(ChannelFrameBytes());
  offer.AppendToString(request);
}

// As TensorFlow gives it to the receives of an aborted step: of the errors of a
// step such a one is reported only if there is no other.
absl::Status Derived(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsAborted(status)
             ? tsl::StatusGroup::MakeDerived(status)
             : status;
}

}  // namespace

FuseRendezvous::FuseRendezvous(const tensorflow::WorkerEnv* env,
                               int64_t step_id)
    : BaseRemoteRendezvous(env, step_id) {
  VLOG(1) << "tf_fuse: step " << step_id_ << " is open";
}

FuseRendezvous::~FuseRendezvous() {
  absl::MutexLock lock(&waiters_mu_);
  if (has_begun_ && abort_status_.ok()) {
    Metrics::Get()->open_steps.fetch_sub(1);
  }
  VLOG(1) << "tf_fuse: step " << step_id_ << " is over";
}

void FuseRendezvous::Schedule(std::function<void()> closure) {
  Ref();
  ScheduleAfterOthers([this, closure = std::move(closure)] {
    closure();
    Unref();
  });
}

std::shared_ptr<PartialSends> FuseRendezvous::partial_sends() {
  absl::MutexLock lock(&parts_mu_);
  if (partial_sends_ == nullptr) {
    absl::MutexLock waiters_lock(&waiters_mu_);
    partial_sends_ =
        std::make_shared<PartialSends>(this, Derived(abort_status_));
  }
  return partial_sends_;
}

void FuseRendezvous::RecvDynamicAsync(
    std::shared_ptr<const FusedKeys> keys,
    const tensorflow::FrameAndIter& frame_iter, const Args& args,
    FusedDone done) {
  if (PlainPeers::OfDynamic()->Contains(keys->send_task,
                                        keys->send_device_incarnation)) {
    Metrics::Get()->fallbacks.fetch_add(1, std::memory_order_relaxed);
    RecvOneByOneAsync(std::move(keys), frame_iter, args, std::move(done));
    return;
  }
  DynamicRecv* dynamic_recv;
  {
    absl::MutexLock lock(&parts_mu_);
    if (dynamic_recv_ == nullptr) {
      dynamic_recv_ = std::make_unique<DynamicRecv>(env_, step_id_, this);
    }
    dynamic_recv = dynamic_recv_.get();
  }
  dynamic_recv->RecvAsync(std::move(keys), frame_iter, args, std::move(done));
}

void FuseRendezvous::RecvOneByOneAsync(
    std::shared_ptr<const FusedKeys> keys,
    const tensorflow::FrameAndIter& frame_iter, const Args& args,
    FusedDone done) {
  auto recv = std::make_shared<FusedRecv>(env_, step_id_, std::move(keys));
  recv->frame_iter = frame_iter;
  recv->args = args;
  recv->done = std::move(done);
  recv->StartWatch();
  recv->slots.resize(recv->keys->tensor_names.size());
  const std::vector<size_t> all = AllIndices(*recv->keys);
  RecvSingles(std::move(recv), all);
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
  VLOG(1) << "tf_fuse: step " << step_id_ << " begins";
  const absl::Status status = BaseRemoteRendezvous::Initialize(session);
  if (!is_initialized()) return status;
  {
    absl::MutexLock lock(&waiters_mu_);
    // What was not begun holds no more than a late request, TensorFlow's own or
    // ours, and is no step. One may begin twice.
    if (!has_begun_ && abort_status_.ok()) {
      Metrics::Get()->open_steps.fetch_add(1);
      workers_ = session->GetSharedWorkerCache();
    }
    has_begun_ = true;
  }
  RunWaiters(absl::OkStatus());
  return status;
}

void FuseRendezvous::StartAbort(const absl::Status& given) {
  // A peer's error may be what the step is aborted with. Its calls that take
  // this status for their answers must not ask again.
  const absl::Status status = WithoutOurPayloads(given);
  VLOG(1) << "tf_fuse: step " << step_id_ << " is aborted: " << status;
  // A waiter's reference may be the last one.
  const auto self = tsl::core::GetNewRef(this);
  std::shared_ptr<tensorflow::WorkerCacheInterface> workers;
  {
    absl::MutexLock lock(&waiters_mu_);
    // TensorFlow keeps what was aborted for ever, so that it is still found:
    // the end of such a step is its abort, not its destruction.
    if (has_begun_ && abort_status_.ok()) {
      Metrics::Get()->open_steps.fetch_sub(1);
    }
    abort_status_.Update(status);
    workers = std::move(workers_);
  }
  std::shared_ptr<PartialSends> partial_sends;
  {
    absl::MutexLock lock(&parts_mu_);
    partial_sends = partial_sends_;
  }
  std::vector<std::shared_ptr<Parcel>> parcels;
  {
    absl::MutexLock lock(&parcels_mu_);
    parcels.swap(parcels_);
  }
  for (const auto& parcel : parcels) parcel->Drop(status);
  // Before the receives end that it has started: it knows why, then.
  if (partial_sends != nullptr) partial_sends->Abort(Derived(status));
  BaseRemoteRendezvous::StartAbort(status);
  RunWaiters(status);
}

absl::Status FuseRendezvous::abort_status() {
  absl::MutexLock lock(&waiters_mu_);
  return abort_status_;
}

std::shared_ptr<tensorflow::WorkerCacheInterface> FuseRendezvous::workers() {
  absl::MutexLock lock(&waiters_mu_);
  return workers_;
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
  VLOG(2) << "tf_fuse: step " << step_id_ << " receives "
          << k.tensor_names.size() << " tensors from " << k.send_task;
  // What a peer packs by its graph cannot be had one by one; and a peer whose
  // graph packs has the plugin.
  const bool packed = !k.packed_name.empty();
  if (!packed &&
      PlainPeers::Get()->Contains(k.send_task, k.send_device_incarnation)) {
    Metrics::Get()->fallbacks.fetch_add(1, std::memory_order_relaxed);
    recv->slots.resize(k.tensor_names.size());
    RecvSingles(std::move(recv), AllIndices(k));
    return;
  }
  SendRequest(std::move(recv));
}

void FuseRendezvous::SendRequest(std::shared_ptr<FusedRecv> recv) {
  const FusedKeys& k = *recv->keys;
  google::protobuf::Any options;
  if (recv->frame_iter == tensorflow::FrameAndIter(0, 0) && !recv->traced()) {
    options.set_type_url(kFusedRequestTypeUrl);
    options.set_value(k.root_request);
  } else {
    options.PackFrom(BuildRequest(k, recv->frame_iter, recv->traced()));
  }
  StartCall(
      {k.send_task, k.send_device_incarnation, k.recv_device, k.rendezvous_key,
       k.tensor_names.size()},
      recv->args, std::move(options),
      [this, recv](const absl::Status& status, const Tensor& frame,
                   int64_t /*request_id*/) { OnFrame(recv, status, frame); },
      [recv](std::shared_ptr<tensorflow::WorkerCacheInterface> worker_cache,
             int64_t request_id) {
        recv->RequestSent(std::move(worker_cache), request_id);
      });
}

bool FuseRendezvous::List(tensorflow::BaseRecvTensorCall* call,
                          const Args& args) {
  RegisterCall(call, args);
  // TensorFlow looks at the step's status before it lists the call: an abort
  // between the two has not reached it.
  const absl::Status aborted = abort_status();
  if (!aborted.ok()) call->StartAbort(Derived(aborted));
  if (call->status().ok()) return true;
  DeregisterCall(call, args);
  return false;
}

bool FuseRendezvous::Register(RecvCall* call, const Args& args) {
  if (List(call, args)) return true;
  call->ReleaseWorker();
  return false;
}

void FuseRendezvous::StartCall(const CallTarget& target, const Args& args,
                               google::protobuf::Any options, CallDone done,
                               CallSent on_sent) {
  const std::string& task = target.task;
  tensorflow::WorkerSession* session = this->session();
  Device* device = nullptr;
  std::unique_ptr<RecvCall> call;
  absl::Status status;
  if (session == nullptr) {
    status = absl::InternalError(absl::StrCat("fused receive from ", task,
                                              " in step ", step_id_,
                                              ", which has not begun here"));
  } else {
    status = session->device_mgr()->LookupDevice(target.recv_device, &device);
  }
  if (status.ok()) {
    call = std::make_unique<RecvCall>(session->GetSharedWorkerCache(), task,
                                      step_id_, device, args.alloc_attrs);
    status = call->Init();
    if (on_sent) {
      on_sent(call->worker_cache(), call->request()->request_id());
    }
  }
  if (!status.ok()) {
    done(status, Tensor(), 0);
    return;
  }
  const int64_t request_id = call->request()->request_id();
  // What comes by a data channel lies in the memory of the host.
  const bool on_host = device->device_type() == tensorflow::DEVICE_CPU;
  PeerChannels::Channel channel;
  if (on_host) {
    channel = PeerChannels::Get()->Find(task, target.send_device_incarnation);
  }
  if (channel.number != 0) {
    OfferChannel(channel.number, options.mutable_value());
  }
  call->request()->set_rendezvous_key(target.rendezvous_key);
  *call->request()->mutable_transport_options() = std::move(options);

  if (!Register(call.get(), args)) {
    done(call->status(), Tensor(), request_id);
    return;
  }
  Ref();
  RecvCall* raw_call = call.release();
  raw_call->Start([this, raw_call, args, request_id, target, on_host, channel,
                   done = std::move(done)] {
    std::unique_ptr<RecvCall> call(raw_call);
    DeregisterCall(call.get(), args);
    // The session may go away as soon as `done` ran: release first.
    call->ReleaseWorker();
    const absl::Status status = call->status();
    v1::Parcel parcel;
    if (status.ok() && channel.number != 0 &&
        ReadParcelAnswer(call->tensor(), &parcel)) {
      TakeParcel(channel.client, parcel, target.tensors, args, request_id,
                 done);
    } else {
      if (status.ok() && on_host && channel.client == nullptr &&
          call->tensor().TotalBytes() >= ChannelFrameBytes()) {
        PeerChannels::Get()->Open(target.task, target.send_device_incarnation,
                                  call->worker_cache(), HostDevice(env_));
      }
      done(status, call->tensor(), request_id);
    }
    call.reset();
    Unref();
  });
}

void FuseRendezvous::TakeParcel(std::shared_ptr<ChunkClient> client,
                                const v1::Parcel& parcel, size_t tensors,
                                const Args& args, int64_t request_id,
                                CallDone done) {
  auto call = std::make_unique<ParcelCall>(std::move(client), parcel);
  const absl::Status status = call->Init(MaxAnswerBytes(tensors));
  if (!status.ok()) return done(status, Tensor(), request_id);
  // One that is aborted already is asked for nevertheless, and then cancelled:
  // so the sender lets go of it.
  const bool listed = List(call.get(), args);
  Ref();
  ParcelCall* const raw_call = call.release();
  raw_call->Start([this, raw_call, listed, args, request_id,
                   done = std::move(done)] {
    const std::unique_ptr<ParcelCall> call(raw_call);
    if (listed) DeregisterCall(call.get(), args);
    const absl::Status status = call->status();
    if (status.ok()) {
      Metrics::Get()->channel_frames.fetch_add(1, std::memory_order_relaxed);
      Metrics::Get()->channel_bytes.fetch_add(call->tensor().TotalBytes(),
                                              std::memory_order_relaxed);
    }
    done(status, call->tensor(), request_id);
    Unref();
  });
}

void FuseRendezvous::AddParcel(const std::shared_ptr<Parcel>& parcel) {
  {
    absl::MutexLock lock(&parcels_mu_);
    // Of a long loop, most have been taken.
    if (parcels_.size() == parcels_.capacity()) {
      parcels_.erase(std::remove_if(parcels_.begin(), parcels_.end(),
                                    [](const std::shared_ptr<Parcel>& one) {
                                      return one->gone();
                                    }),
                     parcels_.end());
    }
    parcels_.push_back(parcel);
  }
  // An abort before that did not find it.
  const absl::Status aborted = abort_status();
  if (!aborted.ok()) parcel->Drop(aborted);
}

void FuseRendezvous::OnFrame(std::shared_ptr<FusedRecv> recv,
                             const absl::Status& status, const Tensor& frame) {
  const FusedKeys& keys = *recv->keys;
  const bool packed = !keys.packed_name.empty();
  if (IsAnswerOfPlainPeer(status) && !packed) {
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
    recv->Fail(status, packed
                           ? AllIndices(keys)
                           : FailedIndices(status, keys.tensor_names.size()));
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
    status = absl::InternalError(absl::StrCat("receive of ", parsed.FullKey(),
                                              " in step ", step_id_,
                                              ", which has not begun here"));
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
  if (!Register(call.get(), args)) {
    done(call->status(), Args(), args, Tensor(), false);
    return;
  }
  Metrics::Get()->single_rpcs.fetch_add(1, std::memory_order_relaxed);
  VLOG(2) << "tf_fuse: step " << step_id_ << " receives " << parsed.FullKey();
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
