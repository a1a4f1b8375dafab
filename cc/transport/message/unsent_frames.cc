// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/message/unsent_frames.h"

#include "base/limits.h"
#include "base/metrics.h"
#include "base/tensor_buffer.h"
#include "tensorflow/core/framework/allocator.h"

namespace tf_fuse {

using tensorflow::Tensor;

namespace {

std::atomic<int64_t>& UnsentBytes() {
  return Metrics::Get()->unsent_frame_bytes;
}

class FrameBuffer : public MemoryBuffer {
 public:
  // `data` is of cpu_allocator(), and counted already.
  FrameBuffer(void* data, uint64_t bytes)
      : MemoryBuffer(data, bytes, "tf_fuse_frame") {}
  ~FrameBuffer() override {
    tensorflow::cpu_allocator()->DeallocateRaw(data());
    UnsentBytes().fetch_sub(static_cast<int64_t>(size()));
  }
};

}  // namespace

bool AllocateFrame(uint64_t bytes, FrameReservation* reservation,
                   Tensor* frame) {
  void* data = tensorflow::cpu_allocator()->AllocateRaw(
      tensorflow::Allocator::kAllocatorAlignment, bytes);
  if (data == nullptr) return false;
  UnsentBytes().fetch_add(static_cast<int64_t>(bytes) -
                          static_cast<int64_t>(reservation->bytes_));
  reservation->bytes_ = 0;
  *frame = BytesIn(new FrameBuffer(data, bytes));
  return true;
}

FrameReservation::~FrameReservation() {
  UnsentBytes().fetch_sub(static_cast<int64_t>(bytes_));
}

bool FrameReservation::Take(uint64_t bytes) {
  const auto added = static_cast<int64_t>(bytes);
  const int64_t before = UnsentBytes().fetch_add(added);
  if (before + added > static_cast<int64_t>(MaxUnsentFrameBytes())) {
    UnsentBytes().fetch_sub(added);
    return false;
  }
  bytes_ += bytes;
  return true;
}

}  // namespace tf_fuse
