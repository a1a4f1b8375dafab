// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What the memory of our tensors has in common.

#ifndef TF_FUSE_CC_BASE_TENSOR_BUFFER_H_
#define TF_FUSE_CC_BASE_TENSOR_BUFFER_H_

#include <cstddef>
#include <cstdint>

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

// Memory in one piece. Whoever derives from this keeps it, or sees to its end.
class MemoryBuffer : public tensorflow::TensorBuffer {
 public:
  // `allocator` names where it is from, and is a constant.
  MemoryBuffer(void* data, uint64_t bytes, const char* allocator)
      : TensorBuffer(data), bytes_(bytes), allocator_(allocator) {}

  size_t size() const final { return bytes_; }
  TensorBuffer* root_buffer() final { return this; }
  void FillAllocationDescription(
      tensorflow::AllocationDescription* description) const final {
    description->set_requested_bytes(static_cast<int64_t>(bytes_));
    description->set_allocator_name(allocator_);
  }

 private:
  const uint64_t bytes_;
  const char* const allocator_;
};

// All of a buffer as a vector of bytes, which takes over the caller's reference
// to it.
inline tensorflow::Tensor BytesIn(MemoryBuffer* buffer) {
  return tensorflow::Tensor(
      tensorflow::DT_UINT8,
      tensorflow::TensorShape({static_cast<int64_t>(buffer->size())}),
      tensorflow::core::RefCountPtr<tensorflow::TensorBuffer>(buffer));
}

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_BASE_TENSOR_BUFFER_H_
