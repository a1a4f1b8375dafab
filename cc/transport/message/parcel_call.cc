// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/message/parcel_call.h"

#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/executors.h"
#include "base/limits.h"
#include "base/metrics.h"
#include "base/recycled_memory.h"
#include "base/tensor_buffer.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "transport/message/failed_slots.h"

namespace tf_fuse {

using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

constexpr char kMagic[] = "TFFP";  // A frame's first bytes are others.

// Memory that may be used again: pages that are written for the first time cost
// more than the copy into them.
class LandedBuffer : public MemoryBuffer {
 public:
  LandedBuffer(std::shared_ptr<char> memory, uint64_t bytes)
      : MemoryBuffer(memory.get(), bytes, "tf_fuse_frame"),
        memory_(std::move(memory)) {}

 private:
  const std::shared_ptr<char> memory_;
};

}  // namespace

Tensor ParcelAnswer(const v1::Parcel& parcel) {
  const std::string bytes = absl::StrCat(kMagic, parcel.SerializeAsString());
  Tensor tensor(tensorflow::DT_UINT8,
                TensorShape({static_cast<int64_t>(bytes.size())}));
  std::memcpy(tensor.data(), bytes.data(), bytes.size());
  return tensor;
}

bool ReadParcelAnswer(const Tensor& answer, v1::Parcel* parcel) {
  if (answer.dtype() != tensorflow::DT_UINT8 || answer.dims() != 1) {
    return false;
  }
  const auto bytes = answer.tensor_data();
  const absl::string_view text(bytes.data(), bytes.size());
  if (!absl::StartsWith(text, kMagic)) return false;
  constexpr size_t kMagicBytes = sizeof(kMagic) - 1;
  if (!parcel->ParseFromString(std::string(text.substr(kMagicBytes)))) {
    parcel->Clear();
  }
  return true;
}

absl::Status ParcelCall::Init(uint64_t max_bytes) {
  if (parcel_.id() == 0 || parcel_.bytes() == 0 ||
      parcel_.bytes() > max_bytes) {
    return absl::DataLossError(absl::StrCat(
        "bad answer: parcel ", parcel_.id(), " of ", parcel_.bytes(),
        " bytes, expected one with a number, and of 1 to ", max_bytes,
        " bytes; ", kMaxFrameBytesVariable,
        " on the receiving task raises the limit"));
  }
  std::shared_ptr<char> memory = RecycledBuffer(parcel_.bytes());
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "out of memory for a frame of ", parcel_.bytes(), " bytes; a lower ",
        kMaxFrameBytesVariable, " on this task has large tensors sent singly"));
  }
  tensor_ = BytesIn(new LandedBuffer(std::move(memory), parcel_.bytes()));
  return absl::OkStatus();
}

void ParcelCall::Start(std::function<void()> recv_done) {
  // As in RecvCall: `recv_done` may destroy this call, so it waits for the look
  // below; whoever is second runs it. Elsewhere, because an abort calls back
  // with a lock held that `recv_done` takes, and what follows a receive may
  // take longer than a data channel's thread has.
  auto pending = std::make_shared<std::atomic<int>>(2);
  auto finish_one = [pending, recv_done = std::move(recv_done)] {
    if (pending->fetch_sub(1) == 1) ScheduleElsewhere(recv_done);
  };
  auto done = [this, finish_one](const absl::Status& status) {
    if (!status.ok()) {
      // (A data channel does not carry that mark.)
      absl::MutexLock lock(&mu_);
      status_.Update(AsOfAbortedStep(status));
    }
    finish_one();
  };
  ChunkKey key;
  key.parcel = parcel_.id();
  key.bytes = parcel_.bytes();
  std::shared_ptr<ChunkCall> chunk = client_->Take(
      key, /*task_token=*/0, static_cast<char*>(tensor_.data()), done,
      [done] { done(absl::UnavailableError("the data channel was lost")); });
  absl::Status aborted;
  {
    absl::MutexLock lock(&mu_);
    chunk_ = chunk;
    aborted = status_;
  }
  if (!aborted.ok()) chunk->Cancel(aborted);
  finish_one();
}

void ParcelCall::StartAbort(const absl::Status& given) {
  const absl::Status status = AsOfAbortedStep(given);
  std::shared_ptr<ChunkCall> chunk;
  {
    absl::MutexLock lock(&mu_);
    status_.Update(status);
    chunk = chunk_;
  }
  if (chunk != nullptr) chunk->Cancel(status);
}

absl::Status ParcelCall::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

}  // namespace tf_fuse
