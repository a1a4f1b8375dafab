// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// PendingFrame: what it reports to those who watch it, and the timer.

#include <algorithm>

#include "base/limits.h"
#include "base/metrics.h"
#include "tensorflow/core/common_runtime/device.h"
#include "transport/peers/ask_peer.h"
#include "transport/sender/pending_frame.h"
#include "transport/watch/recv_trace.h"
#include "transport/watch/stall_report.h"

namespace tf_fuse {

using tensorflow::Tensor;

void PendingFrame::SetWaits(std::vector<int64_t> waits_micros) {
  absl::MutexLock lock(&mu_);
  waits_micros_ = std::move(waits_micros);
}

Slot PendingFrame::WaitsSlot() {
  absl::MutexLock lock(&mu_);
  Slot slot;
  slot.tensor = Tensor(tensorflow::DT_INT64,
                       {static_cast<int64_t>(waits_micros_.size())});
  std::copy(waits_micros_.begin(), waits_micros_.end(),
            slot.tensor.flat<int64_t>().data());
  return slot;
}

void PendingFrame::Trace(absl::StatusCode code, int64_t bytes) {
  if (!traced_) return;
  TracedRecv event;
  {
    absl::MutexLock lock(&mu_);
    // Of what did not come, nothing is known.
    if (code == absl::StatusCode::kOk) event.waits_micros = waits_micros_;
  }
  event.served = KeysOfAnswer(code, &event.names_bytes);
  event.step_id = step_id_;
  event.start_ns = start_ns_;
  event.end_ns = RecvTrace::NowNanos();
  event.bytes = bytes;
  event.code = code;
  RecvTrace::Get()->Add(std::move(event));
}

void PendingFrame::OnTick(uint64_t waited_micros) {
  bool step_begun;
  {
    absl::MutexLock lock(&mu_);
    step_begun = step_has_begun_;
  }
  if (!step_begun && waited_micros >= StepWaitMicros()) {
    Postpone(shared_from_this());
    return;
  }
  if (step_begun) AskReceiver(waited_micros);
  if (StallMicros() != 0 && waited_micros >= StallMicros()) {
    ReportStall(waited_micros);
  }
}

void PendingFrame::AskReceiver(uint64_t waited_micros) {
  tsl::core::RefCountPtr<StepRendezvous> step;
  {
    absl::MutexLock lock(&mu_);
    if (waited_micros - asked_at_micros_ < StepWaitMicros()) return;
    if (request_id_ == 0 || step_ == nullptr) return;
    asked_at_micros_ = waited_micros;
    step = tsl::core::GetNewRef(step_.get());
  }
  auto workers = step->workers();
  if (workers == nullptr) return;
  Metrics::Get()->asked_receivers.fetch_add(1);
  v1::FuseRecvTensorRequest question;
  question.set_awaited_request_id(request_id_);
  AskPeer(std::move(workers),
          std::string(TaskOfDevice(keys_->source.dst_device)), HostDevice(env_),
          std::move(question), kAnswerTimeoutMs,
          [weak = weak_from_this()](const absl::Status& status,
                                    const Tensor& frame) {
            // One that cannot be reached, or is of an older version, may wait.
            if (!status.ok()) return;
            const absl::StatusOr<std::string> bytes = ReadBytesResponse(frame);
            v1::AwaitedAnswer answer;
            if (!bytes.ok() || !answer.ParseFromString(*bytes) ||
                !answer.given_up()) {
              return;
            }
            const auto self = weak.lock();
            if (self != nullptr) OnCancel(self);
          });
}

void PendingFrame::ReportStall(uint64_t waited_micros) {
  {
    absl::MutexLock lock(&mu_);
    if (reported_ || answered_) return;
    reported_ = true;
  }
  Metrics::Get()->stalled_requests.fetch_add(1);
  v1::WaitingReceive waiting;
  if (!AdmitStallReport() || !Describe(&waiting)) return;
  waiting.set_waited_micros(waited_micros);
  LogStall(waiting);
}

v1::StallAnswer PendingFrame::Missing() {
  v1::StallAnswer answer;
  absl::MutexLock lock(&mu_);
  if (answered_) return answer;
  answer.set_found(true);
  answer.set_step_not_begun(!step_has_begun_);
  for (size_t i = 0; i < arrived_.size(); ++i) {
    if (!arrived_[i]) answer.add_missing(static_cast<uint32_t>(i));
  }
  return answer;
}

std::vector<std::string> PendingFrame::Names() {
  std::vector<std::string> names;
  for (const auto& key : keys_->keys) names.emplace_back(key.edge_name);
  return names;
}

bool PendingFrame::Describe(v1::WaitingReceive* out) {
  const v1::StallAnswer now = Missing();
  const std::vector<std::string> names = Names();
  const std::vector<size_t> missing(now.missing().begin(), now.missing().end());
  // Of a request by parts they may be gone between the two looks.
  if (!now.found() || (!missing.empty() && missing.back() >= names.size())) {
    return false;
  }
  SetMissing(missing, [&names](size_t i) { return names[i]; }, out);
  out->set_step_not_begun(now.step_not_begun());
  out->set_sending(true);
  // Not the task in the keys: of them only the device is looked at.
  out->set_task(TaskOfDevice(HostDevice(env_)->name()));
  out->set_peer(TaskOfDevice(keys_->source.dst_device));
  out->set_step_id(step_id_);
  out->set_tensors(static_cast<uint32_t>(names.size()));
  return true;
}

}  // namespace tf_fuse
