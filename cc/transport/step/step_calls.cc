// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// StepRendezvous: its calls to other tasks, and how an abort reaches them.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/metrics.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/platform/logging.h"
#include "transport/message/failed_slots.h"
#include "transport/message/parcel_call.h"
#include "transport/peers/peer_channels.h"
#include "transport/peers/recv_tensor_call.h"
#include "transport/step/step_rendezvous.h"
#include "transport/watch/stall_report.h"

namespace tf_fuse {

using tensorflow::Device;
using tensorflow::DeviceNameUtils;
using tensorflow::Tensor;

namespace {

// Says in a serialized request that its answer may come by a channel. (Of a
// message, parts may be serialized one after the other.)
void OfferChannel(uint64_t number, std::string* request) {
  v1::FuseRecvTensorRequest offer;
  offer.set_channel(number);
  offer.set_channel_bytes(ChannelFrameBytes());
  offer.AppendToString(request);
}

void CountChannelFrame(const Tensor& frame) {
  Metrics* const metrics = Metrics::Get();
  metrics->channel_frames.fetch_add(1, std::memory_order_relaxed);
  metrics->channel_bytes.fetch_add(static_cast<int64_t>(frame.TotalBytes()),
                                   std::memory_order_relaxed);
}

}  // namespace

bool StepRendezvous::List(tensorflow::BaseRecvTensorCall* call,
                          const Args& args) {
  RegisterCall(call, args);
  // TensorFlow looks at the step's status before it lists the call: an abort
  // between the two has not reached it.
  const absl::Status aborted = abort_status();
  if (!aborted.ok()) call->StartAbort(AsOfAbortedStep(aborted));
  if (call->status().ok()) return true;
  DeregisterCall(call, args);
  return false;
}

bool StepRendezvous::Register(RecvCall* call, const Args& args) {
  if (List(call, args)) return true;
  call->ReleaseWorker();
  return false;
}

void StepRendezvous::StartCall(const CallTarget& target, const Args& args,
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
  PeerChannels::Channels channels;
  if (on_host) {
    channels = PeerChannels::Get()->Find(task, target.send_device_incarnation);
  }
  if (channels.parcel_channel != 0) {
    OfferChannel(channels.parcel_channel, options.mutable_value());
  }
  call->UseChannel(std::move(channels.calls), v1::CALL_METHOD_FRAME,
                   MaxAnswerBytes(target.tensors));
  call->request()->set_rendezvous_key(target.rendezvous_key);
  *call->request()->mutable_transport_options() = std::move(options);

  if (!Register(call.get(), args)) {
    done(call->status(), Tensor(), request_id);
    return;
  }
  Ref();
  RecvCall* raw_call = call.release();
  raw_call->Start([this, raw_call, args, request_id, target, on_host, channels,
                   done = std::move(done)] {
    std::unique_ptr<RecvCall> call(raw_call);
    DeregisterCall(call.get(), args);
    // The session may go away as soon as `done` ran: release first.
    call->ReleaseWorker();
    const absl::Status status = call->status();
    v1::Parcel parcel;
    if (status.ok() && channels.parcel_channel != 0 &&
        ReadParcelAnswer(call->tensor(), &parcel)) {
      TakeParcel(channels.parcels, parcel, target.tensors, args, request_id,
                 done);
    } else {
      if (status.ok() && call->by_channel()) {
        CountChannelFrame(call->tensor());
      }
      if (status.ok() && on_host) {
        OpenChannels(*call, target, channels.is_known);
      }
      done(status, call->tensor(), request_id);
    }
    call.reset();
    Unref();
  });
}

void StepRendezvous::OpenChannels(const RecvCall& call,
                                  const CallTarget& target, bool is_known) {
  PeerChannels* const channels = PeerChannels::Get();
  const uint64_t incarnation = target.send_device_incarnation;
  if (!is_known) {
    channels->Open(target.task, incarnation, call.worker_cache(),
                   HostDevice(env_));
  }
  if (call.tensor().TotalBytes() >= ChannelFrameBytes()) {
    channels->OpenForLargeFrames(target.task, incarnation);
  }
}

void StepRendezvous::TakeParcel(std::shared_ptr<ChunkClient> client,
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
  raw_call->Start(
      [this, raw_call, listed, args, request_id, done = std::move(done)] {
        const std::unique_ptr<ParcelCall> call(raw_call);
        if (listed) DeregisterCall(call.get(), args);
        const absl::Status status = call->status();
        if (status.ok()) CountChannelFrame(call->tensor());
        done(status, call->tensor(), request_id);
        Unref();
      });
}

void StepRendezvous::RecvFromRemoteAsync(const ParsedKey& parsed,
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
  const bool on_host = device->device_type() == tensorflow::DEVICE_CPU &&
                       parsed.src.type == tensorflow::DEVICE_CPU;
  PeerChannels::Channels channels;
  if (on_host) {
    channels = PeerChannels::Get()->Find(task, parsed.src_incarnation);
    call->UseChannel(std::move(channels.tensors), v1::CALL_METHOD_RECV_TENSOR,
                     kMaxAnswerMessageBytes);
  }
  const bool open =
      on_host && !channels.is_known && PeerChannels::Get()->wanted();
  if (!Register(call.get(), args)) {
    done(call->status(), Args(), args, Tensor(), false);
    return;
  }
  Metrics::Get()->single_rpcs.fetch_add(1, std::memory_order_relaxed);
  VLOG(2) << "tf_fuse: step " << step_id_ << " receives " << parsed.FullKey();
  Ref();
  RecvCall* raw_call = call.release();
  raw_call->Start([this, raw_call, args, open, task,
                   incarnation = parsed.src_incarnation,
                   done = std::move(done)] {
    std::unique_ptr<RecvCall> call(raw_call);
    DeregisterCall(call.get(), args);
    call->ReleaseWorker();
    if (open && call->status().ok()) {
      PeerChannels::Get()->Open(task, incarnation, call->worker_cache(),
                                HostDevice(env_));
    }
    done(call->status(), Args(), args, call->tensor(), call->is_dead());
    call.reset();
    Unref();
  });
}

}  // namespace tf_fuse
