// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/fuse_worker.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/rendezvous_mgr_interface.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_tensor_coding.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "transport/fuse_rendezvous.h"
#include "transport/fuse_status.h"
#include "transport/metrics.h"
#include "transport/tensor_frame.h"

namespace tf_fuse {

using tensorflow::CallOptions;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

namespace {

absl::Status EncodeFrame(const Tensor& frame, ::grpc::ByteBuffer* response) {
  return tensorflow::grpc::EncodeTensorToByteBuffer(
      /*is_dead=*/false, frame, /*require_ack=*/false, response);
}

}  // namespace

// A request whose tensors are not all there yet. Every local receive holds a
// reference, so it outlives whichever callback comes last.
struct FuseWorker::PendingFrame {
  tensorflow::WorkerEnv* env = nullptr;
  CallOptions* options = nullptr;
  ::grpc::ByteBuffer* response = nullptr;
  tensorflow::StatusCallback done;
  int64_t step_id = 0;
  std::shared_ptr<const ParsedKeys> keys;
  std::vector<Slot> slots;
  std::vector<Rendezvous::Args> send_args;
  std::atomic<size_t> remaining{0};

  absl::Mutex mu;
  // Held from the request until the local receives have started: whoever
  // cancels must find it. Those receives keep it alive themselves.
  tsl::core::RefCountPtr<FuseRendezvous> rendezvous ABSL_GUARDED_BY(mu);
  absl::Status status ABSL_GUARDED_BY(mu);
  std::vector<size_t> failed ABSL_GUARDED_BY(mu);
  // Once true, options, response and done belong to the RPC layer again.
  bool answered ABSL_GUARDED_BY(mu) = false;
  bool collecting ABSL_GUARDED_BY(mu) = true;

  ~PendingFrame() { Metrics::Get()->pending_requests.fetch_sub(1); }
  PendingFrame() { Metrics::Get()->pending_requests.fetch_add(1); }

  // True for exactly one caller, which then answers.
  bool ClaimAnswer() {
    absl::MutexLock lock(&mu);
    if (answered) return false;
    answered = true;
    return true;
  }

  void OnTensor(size_t index, const absl::Status& status,
                const Rendezvous::Args& args, const Tensor& tensor,
                bool is_dead);
  void Finish();
  // The step has begun, or will not.
  static void OnStep(const std::shared_ptr<PendingFrame>& self,
                     const absl::Status& status);
  static void OnCancel(const std::shared_ptr<PendingFrame>& self);
  void DeferLargeTensors();
};

void FuseWorker::PendingFrame::OnTensor(size_t index, const absl::Status& error,
                                        const Rendezvous::Args& args,
                                        const Tensor& tensor, bool is_dead) {
  {
    absl::MutexLock lock(&mu);
    if (!error.ok()) {
      status.Update(error);
      failed.push_back(index);
    } else if (collecting) {
      slots[index].tensor = tensor;
      slots[index].is_dead = is_dead;
      send_args[index] = args;
    }
  }
  if (remaining.fetch_sub(1) == 1) Finish();
}

// Puts tensors that are too large for the frame back, under their own keys; the
// receiver then fetches each by a single receive, which needs no copy here.
void FuseWorker::PendingFrame::DeferLargeTensors() {
  std::vector<size_t> order;  // By size: the fewest go beside.
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].is_dead) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
    return slots[a].tensor.TotalBytes() < slots[b].tensor.TotalBytes();
  });
  uint64_t frame_bytes = 0;
  for (const size_t i : order) {
    Slot& slot = slots[i];
    const bool raw = RawElementBytes(slot.tensor.dtype()) != 0;
    const uint64_t bytes = slot.tensor.TotalBytes();
    if (raw && bytes <= keys->max_packed_tensor_bytes &&
        frame_bytes + bytes <= MaxFrameBytes()) {
      frame_bytes += bytes;
      continue;
    }
    slot.beside = true;
    const absl::Status sent = env->rendezvous_mgr->Find(step_id)->Send(
        keys->keys[i], send_args[i], slot.tensor, slot.is_dead);
    if (!sent.ok()) {
      absl::MutexLock lock(&mu);
      status.Update(sent);
      failed.push_back(i);
    }
  }
}

void FuseWorker::PendingFrame::Finish() {
  if (!ClaimAnswer()) return;
  options->ClearCancelCallback();
  bool ok = false;
  {
    absl::MutexLock lock(&mu);
    ok = status.ok();
  }
  Metrics* metrics = Metrics::Get();
  absl::Status result;
  if (ok) DeferLargeTensors();
  {
    absl::MutexLock lock(&mu);
    if (!status.ok()) {
      std::sort(failed.begin(), failed.end());
      result = AttachFailedIndices(status, failed);
    }
  }
  if (result.ok()) {
    Tensor frame;
    result = PackFrame(slots, &frame);
    if (result.ok()) result = EncodeFrame(frame, response);
    if (result.ok()) {
      metrics->served_rpcs.fetch_add(1, std::memory_order_relaxed);
      metrics->served_tensors.fetch_add(slots.size(),
                                        std::memory_order_relaxed);
      metrics->served_bytes.fetch_add(frame.TotalBytes(),
                                      std::memory_order_relaxed);
    }
  }
  if (!result.ok()) metrics->served_errors.fetch_add(1);
  slots.clear();
  send_args.clear();
  tensorflow::StatusCallback callback = std::move(done);
  callback(result);
}

void FuseWorker::PendingFrame::OnStep(const std::shared_ptr<PendingFrame>& self,
                                      const absl::Status& step_status) {
  tsl::core::RefCountPtr<FuseRendezvous> step;
  {
    absl::MutexLock lock(&self->mu);
    if (self->answered) return;
    step = std::move(self->rendezvous);
    self->status.Update(step_status);
  }
  if (!step_status.ok()) return self->Finish();
  for (size_t i = 0; i < self->keys->keys.size(); ++i) {
    step->RecvLocalAsync(
        self->keys->keys[i],
        [self, i](const absl::Status& status, const Rendezvous::Args& send_args,
                  const Rendezvous::Args& /*recv_args*/, const Tensor& tensor,
                  const bool is_dead) {
          self->OnTensor(i, status, send_args, tensor, is_dead);
        });
  }
}

// The receiver has gone or gave up. Answers and drops what has arrived; the
// local receives end with the step. As in TensorFlow, the step itself is not
// aborted: a transient network failure must not end it.
void FuseWorker::PendingFrame::OnCancel(
    const std::shared_ptr<PendingFrame>& self) {
  std::vector<Slot> dropped;
  tsl::core::RefCountPtr<FuseRendezvous> step;
  {
    absl::MutexLock lock(&self->mu);
    if (self->answered) return;
    self->answered = true;
    self->collecting = false;
    dropped.swap(self->slots);
    step = std::move(self->rendezvous);
  }
  if (step != nullptr) step->StopWaiting(self.get());
  Metrics::Get()->cancelled_requests.fetch_add(1);
  // We are called with the lock of `options` held, and `done` deletes it:
  // answer on another thread, once ClearCancelCallback() has seen us leave.
  self->env->compute_pool->Schedule([self] {
    self->options->ClearCancelCallback();
    tensorflow::StatusCallback callback = std::move(self->done);
    callback(absl::CancelledError(
        absl::StrCat("fused receive of step ", self->step_id,
                     " was cancelled by its receiver")));
  });
}

FuseWorker::FuseWorker(tensorflow::WorkerEnv* env,
                       const tensorflow::ConfigProto& config)
    : GrpcWorker(env, config) {}

void FuseWorker::GrpcRecvTensorAsync(
    CallOptions* options, const tensorflow::RecvTensorRequest* request,
    ::grpc::ByteBuffer* response, tensorflow::StatusCallback done) {
  if (!request->has_transport_options() ||
      request->transport_options().type_url() != kFusedRequestTypeUrl) {
    GrpcWorker::GrpcRecvTensorAsync(options, request, response,
                                    std::move(done));
    return;
  }
  Metrics* metrics = Metrics::Get();
  auto keys = request_cache_.Get(request->transport_options().value());
  absl::Status status = keys.status();
  if (status.ok() && (*keys)->keys.empty()) {
    metrics->served_probes.fetch_add(1);
    Tensor frame;
    status = PackFrame({}, &frame);
    if (status.ok()) status = EncodeFrame(frame, response);
    done(status);
    return;
  }
  if (status.ok()) {
    // A request that the network delivered twice must not take the tensors of
    // the next one.
    status = recent_request_ids_.TrackUnique(
        request->request_id(), "FuseRecvTensor (tf_fuse)", *request);
  }
  if (status.ok()) {
    // All keys have the same source: one look is enough.
    tensorflow::Device* device = nullptr;
    status = PrepareRecvTensor((*keys)->keys[0], &device);
    if (status.ok() &&
        device->tensorflow_accelerator_device_info() != nullptr) {
      status = absl::UnimplementedError(
          absl::StrCat("fused receives are served from host memory, not from ",
                       device->name()));
    }
  }
  if (!status.ok()) {
    metrics->rejected_requests.fetch_add(1);
    done(status);
    return;
  }
  auto pending = std::make_shared<PendingFrame>();
  pending->env = env_;
  pending->options = options;
  pending->response = response;
  pending->done = std::move(done);
  pending->step_id = request->step_id();
  pending->keys = *std::move(keys);
  StartReceives(pending);
}

void FuseWorker::StartReceives(const std::shared_ptr<PendingFrame>& pending) {
  const size_t count = pending->keys->keys.size();
  pending->slots.resize(count);
  pending->send_args.resize(count);
  pending->remaining = count;
  // Once for all keys: the table of steps is shared by the whole task.
  auto found = env_->rendezvous_mgr->Find(pending->step_id);
  tsl::core::RefCountPtr<FuseRendezvous> step(
      tensorflow::down_cast<FuseRendezvous*>(found.release()));
  {
    absl::MutexLock lock(&pending->mu);
    pending->rendezvous = tsl::core::GetNewRef(step.get());
  }
  pending->options->SetCancelCallback(
      [pending] { PendingFrame::OnCancel(pending); });
  step->WhenInitialized(pending.get(), [pending](const absl::Status& status) {
    PendingFrame::OnStep(pending, status);
  });
  // A cancellation that came before the wait began did not end it.
  bool cancelled;
  {
    absl::MutexLock lock(&pending->mu);
    cancelled = pending->answered;
  }
  if (cancelled) step->StopWaiting(pending.get());
}

}  // namespace tf_fuse
