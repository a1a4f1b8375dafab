// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/sender/pending_frame.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/executors.h"
#include "base/limits.h"
#include "base/metrics.h"
#include "channel/consumer_connection.h"
#include "channel/parcel.h"
#include "tensorflow/core/distributed_runtime/rendezvous_mgr_interface.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_tensor_coding.h"
#include "transport/message/failed_slots.h"
#include "transport/message/joint_send.h"
#include "transport/message/parcel_call.h"
#include "transport/sender/unpacked_frame.h"
#include "transport/watch/recv_trace.h"

namespace tf_fuse {

using tensorflow::CallOptions;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

namespace {

size_t SendsOf(const ParsedKeys& keys) {
  size_t sends = keys.keys.size();
  for (const uint32_t tensors : keys.joint_sends) sends -= tensors - 1;
  return sends;
}

}  // namespace

absl::Status EncodeFrameResponse(const Tensor& frame,
                                 ::grpc::ByteBuffer* response) {
  return tensorflow::grpc::EncodeTensorToByteBuffer(
      /*is_dead=*/false, frame, /*require_ack=*/false, response);
}

PendingFrame::PendingFrame(int64_t request_id, tensorflow::WorkerEnv* env,
                           CallOptions* options, int64_t step_id,
                           std::shared_ptr<const ParsedKeys> keys,
                           RequestBudget::Ticket ticket, FrameResponse respond,
                           tensorflow::StatusCallback done,
                           std::function<void()> abort_step)
    : request_id_(request_id),
      env_(env),
      keys_(std::move(keys)),
      ticket_(std::move(ticket)),
      traced_(RecvTrace::Active()),
      start_ns_(traced_ || keys_->report_waits ? RecvTrace::NowNanos() : 0),
      options_(options),
      step_id_(step_id),
      respond_(std::move(respond)),
      done_(std::move(done)),
      abort_step_(std::move(abort_step)),
      from_device_(!keys_->keys.empty() &&
                   keys_->keys[0].src.type != tensorflow::DEVICE_CPU),
      remaining_(SendsOf(*keys_)),
      arrived_(keys_->keys.size()) {}

bool PendingFrame::ClaimAnswer() {
  absl::MutexLock lock(&mu_);
  if (answered_) return false;
  answered_ = true;
  return true;
}

void PendingFrame::Start(const std::shared_ptr<PendingFrame>& self) {
  VLOG(2) << "tf_fuse: step " << self->step_id_ << ": request of "
          << self->keys_->source.dst_device;
  // Once for all keys: the table of steps is shared by the whole task.
  auto found = self->env_->rendezvous_mgr->Find(self->step_id_);
  tsl::core::RefCountPtr<StepRendezvous> step(
      tensorflow::down_cast<StepRendezvous*>(found.release()));
  {
    absl::MutexLock lock(&self->mu_);
    self->step_ = tsl::core::GetNewRef(step.get());
  }
  self->options_->SetCancelCallback([self] { OnCancel(self); });
  const bool waits = step->WhenInitialized(
      self.get(), [self](const absl::Status& status) { OnStep(self, status); });
  // Not before: the timer may answer, and then `options_` is gone.
  self->place_.Enter(self, self->request_id_);
  if (!waits) return;
  // A cancellation that came before the wait began did not end it.
  bool cancelled;
  {
    absl::MutexLock lock(&self->mu_);
    cancelled = self->answered_;
  }
  if (cancelled) step->StopWaiting(self.get());
}

absl::Status PendingFrame::status() {
  absl::MutexLock lock(&mu_);
  return status_;
}

void PendingFrame::OnStep(const std::shared_ptr<PendingFrame>& self,
                          const absl::Status& step_status) {
  tsl::core::RefCountPtr<StepRendezvous> step;
  {
    absl::MutexLock lock(&self->mu_);
    if (self->answered_) return;
    step = tsl::core::GetNewRef(self->step_.get());
    self->step_has_begun_ = true;
    self->status_.Update(step_status);
    if (step_status.ok()) {
      self->slots_.resize(self->keys_->keys.size());
      self->send_args_.resize(self->keys_->keys.size());
      if (self->from_device_) {
        self->on_device_.resize(self->keys_->keys.size());
        self->contexts_.resize(self->keys_->keys.size());
      }
      if (self->start_ns_ != 0) {
        self->waits_micros_.resize(self->keys_->keys.size());
      }
    }
  }
  if (!step_status.ok()) return self->Finish();
  self->Collect(self, step.get());
}

void PendingFrame::Collect(const Self& self, StepRendezvous* step) {
  auto joint = keys_->joint_sends.begin();
  for (size_t begin = 0, end; begin < keys_->keys.size(); begin = end) {
    end = begin + (joint != keys_->joint_sends.end() ? *joint++ : 1);
    step->RecvLocalAsync(
        keys_->keys[begin],
        [self, begin, end](const absl::Status& status,
                           const Rendezvous::Args& send_args,
                           const Rendezvous::Args& /*recv_args*/,
                           const Tensor& sent, const bool is_dead) {
          self->OnSend(begin, end, status, send_args, sent, is_dead);
        });
  }
  // An abort that came between TensorFlow's look at the step's status and the
  // start of a receive does not reach that receive.
  const absl::Status aborted = step->abort_status();
  if (aborted.ok() || !self->StopCollecting()) return;
  self->options_->ClearCancelCallback();
  Metrics::Get()->served_errors.fetch_add(1);
  tensorflow::StatusCallback callback = std::move(self->done_);
  callback(aborted);
}

void PendingFrame::OnSend(size_t begin, size_t end, absl::Status status,
                          const Rendezvous::Args& args, const Tensor& sent,
                          bool is_dead) {
  absl::Span<const Tensor> tensors(&sent, 1);
  if (status.ok() && end - begin > 1) {
    const auto joint = ReadJointSend(sent, end - begin);
    status = joint.status();
    if (joint.ok()) tensors = *joint;
  }
  {
    absl::MutexLock lock(&mu_);
    status_.Update(status);
    for (size_t i = begin; i < end; ++i) {
      arrived_[i] = true;
      if (start_ns_ != 0) {
        waits_micros_[i] =
            std::max<int64_t>(RecvTrace::NowNanos() - start_ns_, 0) / 1000;
      }
      if (!status.ok()) {
        failed_.push_back(i);
      } else if (collecting_) {
        slots_[i].tensor = tensors[i - begin];
        slots_[i].is_dead = is_dead;
        send_args_[i] = args;
        if (from_device_ && args.device_context != nullptr) {
          contexts_[i] = tsl::core::GetNewRef(args.device_context);
        }
      }
    }
  }
  if (remaining_.fetch_sub(1) != 1) return;
  if (from_device_) {
    CopyToHost();
  } else {
    Finish();
  }
}

void PendingFrame::ChooseBeside(FrameReservation* reservation) {
  tf_fuse::ChooseBeside(keys_->max_packed_tensor_bytes, keys_->max_frame_bytes,
                        reservation, &slots_);
}

// Puts what is not packed back, under its own keys; the receiver then fetches
// each by a single receive, which needs no copy here. `step` is the rendezvous
// that they came from: the table of steps may have lost it to a cleanup, and
// would make another that has not begun.
absl::Status PendingFrame::SendBeside(StepRendezvous* step) {
  absl::Status status;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (!slot.beside) continue;
    const bool on_device =
        !on_device_.empty() && on_device_[i].TotalBytes() > 0;
    const absl::Status sent =
        step->Send(KeyOfSlot(i), send_args_[i],
                   on_device ? on_device_[i] : slot.tensor, slot.is_dead);
    if (!sent.ok()) {
      status.Update(sent);
      absl::MutexLock lock(&mu_);
      status_.Update(sent);
      failed_.push_back(i);
    }
  }
  return status;
}

const Rendezvous::ParsedKey& PendingFrame::KeyOfSlot(size_t i) const {
  return keys_->keys[i];
}

absl::Status PendingFrame::MakeFrame(StepRendezvous* step, Tensor* frame,
                                     size_t* tensors) {
  FrameReservation reservation;
  bool ok = status().ok();
  if (ok) {
    ChooseBeside(&reservation);
    ok = SendBeside(step).ok();
  }
  if (!ok) {
    absl::MutexLock lock(&mu_);
    std::sort(failed_.begin(), failed_.end());
    return AttachFailedIndices(status_, failed_);
  }
  *tensors = slots_.size();
  if (keys_->report_waits) slots_.push_back(WaitsSlot());
  return Pack(&reservation, frame);
}

absl::Status PendingFrame::Pack(FrameReservation* reservation, Tensor* frame) {
  uint64_t least_bytes = 0;
  for (const Slot& slot : slots_) {
    if (!slot.is_dead && !slot.beside) least_bytes += slot.tensor.TotalBytes();
  }
  if (channel_ != nullptr && least_bytes >= keys_->channel_bytes &&
      channel_->shares_memory()) {
    // What is copied to shared memory is copied once only.
    auto gathered = GatheredFrame::Make(slots_);
    if (!gathered.ok()) return gathered.status();
    gathered_ = *std::move(gathered);
    return absl::OkStatus();
  }
  return PackFrame(slots_, reservation, frame);
}

uint64_t PendingFrame::PutParcel(StepRendezvous* step, const Tensor& frame) {
  const uint64_t bytes =
      gathered_ != nullptr ? gathered_->bytes() : frame.TotalBytes();
  if (channel_ == nullptr || bytes < keys_->channel_bytes) return 0;
  // Who waits for the parcel waits for the step: it must be there to be
  // aborted.
  std::shared_ptr<StepRendezvous> held(
      step, [](StepRendezvous* one) { one->Unref(); });
  step->Ref();
  PostedChunk content;
  if (gathered_ != nullptr) {
    content.read = [gathered = gathered_](uint64_t begin, uint64_t size,
                                          char* to) {
      gathered->Read(begin, size, to);
    };
  } else {
    content.data = static_cast<const char*>(frame.data());
  }
  content.done = [held, frame] {};
  const auto parcel = std::make_shared<Parcel>(bytes, std::move(content));
  const uint64_t number = channel_->Put(parcel);
  if (number != 0) step->AddParcel(parcel);
  return number;
}

absl::Status PendingFrame::Respond(StepRendezvous* step, const Tensor& frame) {
  v1::Parcel parcel;
  parcel.set_id(PutParcel(step, frame));
  if (parcel.id() != 0) {
    parcel.set_bytes(gathered_ != nullptr ? gathered_->bytes()
                                          : frame.TotalBytes());
    return respond_(ParcelAnswer(parcel));
  }
  if (gathered_ == nullptr) return respond_(frame);
  // The channel was lost just now.
  FrameReservation reservation;
  Tensor packed;
  const absl::Status status = PackFrame(slots_, &reservation, &packed);
  return status.ok() ? respond_(packed) : status;
}

void PendingFrame::Finish() {
  if (!ClaimAnswer()) return;
  options_->ClearCancelCallback();
  tsl::core::RefCountPtr<StepRendezvous> step;
  {
    absl::MutexLock lock(&mu_);
    step = std::move(step_);
  }
  Metrics* metrics = Metrics::Get();
  if (keys_->channel != 0) channel_ = ConsumerConnection::Find(keys_->channel);
  Tensor frame;
  size_t tensors = 0;
  absl::Status result = MakeFrame(step.get(), &frame, &tensors);
  const auto bytes = static_cast<int64_t>(
      gathered_ != nullptr ? gathered_->bytes() : frame.TotalBytes());
  if (result.ok()) result = Respond(step.get(), frame);
  if (result.ok()) {
    metrics->served_rpcs.fetch_add(1, std::memory_order_relaxed);
    metrics->served_tensors.fetch_add(static_cast<int64_t>(tensors),
                                      std::memory_order_relaxed);
    metrics->served_bytes.fetch_add(bytes, std::memory_order_relaxed);
    metrics->request_waits.Add(stopwatch_.Micros());
  } else {
    metrics->served_errors.fetch_add(1);
  }
  Trace(result.code(), bytes);
  channel_ = nullptr;
  gathered_ = nullptr;
  slots_.clear();
  send_args_.clear();
  on_device_.clear();
  contexts_.clear();
  // Before the answer: it counts as unsent until gRPC has sent it.
  frame = Tensor();
  tensorflow::StatusCallback callback = std::move(done_);
  callback(result);
}

bool PendingFrame::StopCollecting() {
  std::vector<Slot> dropped;
  tsl::core::RefCountPtr<StepRendezvous> step;
  {
    absl::MutexLock lock(&mu_);
    if (answered_) return false;
    answered_ = true;
    collecting_ = false;
    dropped.swap(slots_);
    step = std::move(step_);
  }
  DropCollected();
  if (step != nullptr) step->StopWaiting(this);
  return true;
}

// The receiver has gone or gave up. Answers and drops what has arrived; the
// local receives end with the step, which is aborted as TensorFlow aborts it
// for a single receive: gRPC may cancel an RPC here without its client learning
// of it, and the client would wait for ever.
void PendingFrame::OnCancel(const std::shared_ptr<PendingFrame>& self) {
  if (!self->StopCollecting()) return;
  Metrics::Get()->cancelled_requests.fetch_add(1);
  VLOG(2) << "tf_fuse: step " << self->step_id_ << ": request of "
          << self->keys_->source.dst_device << " is cancelled";
  self->Trace(absl::StatusCode::kCancelled, 0);
  // We are called with the lock of `options` held, and `done` deletes it:
  // answer on another thread, once ClearCancelCallback() has seen us leave.
  ScheduleElsewhere([self] {
    self->options_->ClearCancelCallback();
    self->abort_step_();
    tensorflow::StatusCallback callback = std::move(self->done_);
    callback(absl::CancelledError(
        absl::StrCat("fused receive of step ", self->step_id_,
                     " was cancelled by its receiver")));
  });
}

void PendingFrame::Postpone(const std::shared_ptr<PendingFrame>& self) {
  tsl::core::RefCountPtr<StepRendezvous> step;
  {
    absl::MutexLock lock(&self->mu_);
    if (self->answered_ || self->step_has_begun_) return;
    if (self->step_ == nullptr) return;
    self->answered_ = true;
    step = std::move(self->step_);
  }
  step->StopWaiting(self.get());
  Metrics::Get()->postponed_requests.fetch_add(1);
  self->Trace(absl::StatusCode::kAborted, 0);
  self->options_->ClearCancelCallback();
  tensorflow::StatusCallback callback = std::move(self->done_);
  callback(PostponedError(self->step_id_));
}

std::shared_ptr<const ParsedKeys> PendingFrame::KeysOfAnswer(
    absl::StatusCode /*code*/, size_t* /*names_bytes*/) {
  return keys_;
}

}  // namespace tf_fuse
