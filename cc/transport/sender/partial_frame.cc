// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/sender/partial_frame.h"

#include <algorithm>
#include <utility>

#include "base/executors.h"
#include "transport/message/failed_slots.h"

namespace tf_fuse {

using tensorflow::Rendezvous;

PartialFrame::~PartialFrame() {
  // What it left keeps the bytes.
  if (asked_ != nullptr) asked_->ticket.ReleaseRequest();
}

void PartialFrame::Collect(const Self& self, StepRendezvous* step) {
  std::shared_ptr<PartialSends> sends = step->partial_sends();
  PartialSends::Tensors tensors;
  asked_ = std::make_shared<PartialSends::Asked>();
  asked_->keys = keys_;
  asked_->ticket = std::move(ticket_);
  const absl::Status opened = sends->Open(
      asked_, std::static_pointer_cast<PartialFrame>(self), &tensors);
  bool dropped;
  {
    absl::MutexLock lock(&parts_mu_);
    dropped = dropped_;
    sends_ = sends;
    open_status_ = opened;
    tensors_ = tensors;
  }
  if (dropped) {
    // The receiver has gone meanwhile.
    DropCollected();
    return;
  }
  if (opened.ok()) sends->Start(tensors);
  bool answer;
  {
    absl::MutexLock lock(&parts_mu_);
    collected_ = true;
    answer = woken_ || !opened.ok();
  }
  // An abort that came between TensorFlow's look at the step's status and the
  // start of a receive does not reach that receive.
  if (answer || !sends->status().ok()) Finish();
}

void PartialFrame::Wake() {
  {
    absl::MutexLock lock(&parts_mu_);
    if (std::exchange(woken_, true) || !collected_) return;
  }
  // Not by whoever sends: more may come until then, as a sender often has many
  // tensors at once.
  ScheduleAfterOthers([self = std::static_pointer_cast<PartialFrame>(
                           shared_from_this())] { self->Finish(); });
}

absl::Status PartialFrame::MakeFrame(StepRendezvous* step,
                                     tensorflow::Tensor* frame,
                                     size_t* tensors) {
  PartialSends::Tensors asked;
  std::shared_ptr<PartialSends> sends;
  absl::Status status;
  {
    absl::MutexLock lock(&parts_mu_);
    asked.swap(tensors_);
    sends = sends_;
    status = open_status_;
  }
  // The step was aborted, here or before.
  if (status.ok()) status = PendingFrame::status();
  if (sends == nullptr) return status;
  if (status.ok()) status = sends->status();
  if (!status.ok()) {
    sends->Drop(asked);
    return status;
  }
  part_ = sends->Take(std::move(asked));
  if (!part_.failed.empty()) {
    sends->Keep(request_id_, std::move(part_.rest));
    return AttachFailedIndices(part_.status, part_.failed);
  }
  *tensors = part_.slots.size();
  status = PackPart(step, frame);
  if (status.ok()) {
    sends->Keep(request_id_, std::move(part_.rest));
  } else {
    sends->Drop(part_.rest);
  }
  return status;
}

absl::Status PartialFrame::PackPart(StepRendezvous* step,
                                    tensorflow::Tensor* frame) {
  slots_ = std::move(part_.slots);
  send_args_ = std::move(part_.send_args);
  FrameReservation reservation;
  ChooseBeside(&reservation);
  const absl::Status sent = SendBeside(step);
  if (!sent.ok()) return sent;
  if (measures_waits()) {
    std::vector<int64_t> waits_micros;
    for (const int64_t arrived_ns : part_.arrived_ns) {
      waits_micros.push_back(std::max<int64_t>(arrived_ns - start_ns_, 0) /
                             1000);
    }
    SetWaits(std::move(waits_micros));
  }
  slots_.insert(slots_.begin(), PositionsSlot(part_.positions));
  if (keys_->report_waits) slots_.push_back(WaitsSlot());
  return Pack(&reservation, frame);
}

// What is in the answer; all that was asked for by name if there is none.
std::shared_ptr<const ParsedKeys> PartialFrame::KeysOfAnswer(
    absl::StatusCode code, size_t* names_bytes) {
  if (code != absl::StatusCode::kOk) return keys_;
  auto keys = std::make_shared<ParsedKeys>();
  keys->source = keys_->source;
  for (const auto& tensor : part_.tensors) {
    keys->keys.push_back(PartialSends::KeyOf(*tensor));
    *names_bytes +=
        sizeof(Rendezvous::ParsedKey) + keys->keys.back().FullKey().size();
  }
  return keys;
}

const Rendezvous::ParsedKey& PartialFrame::KeyOfSlot(size_t i) const {
  return PartialSends::KeyOf(*part_.tensors[i]);
}

v1::StallAnswer PartialFrame::Missing() {
  v1::StallAnswer answer = PendingFrame::Missing();
  answer.clear_missing();
  if (!answer.found()) return answer;
  const size_t count = Names().size();
  for (size_t i = 0; i < count; ++i) {
    answer.add_missing(static_cast<uint32_t>(i));
  }
  return answer;
}

std::vector<std::string> PartialFrame::Names() {
  {
    absl::MutexLock lock(&parts_mu_);
    if (!tensors_.empty()) {
      std::vector<std::string> names;
      for (const auto& tensor : tensors_) {
        names.emplace_back(PartialSends::KeyOf(*tensor).edge_name);
      }
      return names;
    }
  }
  // The step has not begun.
  return PendingFrame::Names();
}

void PartialFrame::DropCollected() {
  PartialSends::Tensors asked;
  std::shared_ptr<PartialSends> sends;
  {
    absl::MutexLock lock(&parts_mu_);
    dropped_ = true;
    asked.swap(tensors_);
    sends = sends_;
  }
  if (sends != nullptr) sends->Drop(asked);
}

}  // namespace tf_fuse
