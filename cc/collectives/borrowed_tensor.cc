// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/borrowed_tensor.h"

#include "tensorflow/core/framework/allocation_description.pb.h"

namespace tf_fuse {

using tensorflow::Tensor;

namespace {

class BorrowedBuffer : public tensorflow::TensorBuffer {
 public:
  BorrowedBuffer(char* data, size_t size) : TensorBuffer(data), size_(size) {}

  size_t size() const override { return size_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(
      tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(size_));
    description->set_allocator_name("tf_fuse_borrowed");
  }

 private:
  const size_t size_;
};

}  // namespace

Tensor BorrowedTensor(tensorflow::DataType type, char* data, int64_t elements) {
  return Tensor(
      type, tensorflow::TensorShape({elements}),
      tensorflow::core::RefCountPtr<tensorflow::TensorBuffer>(
          new BorrowedBuffer(data, elements * tensorflow::DataTypeSize(type))));
}

Tensor BorrowedTensor(char* data, int64_t bytes) {
  return BorrowedTensor(tensorflow::DT_UINT8, data, bytes);
}

}  // namespace tf_fuse
