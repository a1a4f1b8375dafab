// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "base/borrowed_tensor.h"

#include "base/tensor_buffer.h"

namespace tf_fuse {

using tensorflow::Tensor;

Tensor BorrowedTensor(tensorflow::DataType type, char* data, int64_t elements) {
  return Tensor(
      type, tensorflow::TensorShape({elements}),
      tensorflow::core::RefCountPtr<tensorflow::TensorBuffer>(
          new MemoryBuffer(data, elements * tensorflow::DataTypeSize(type),
                           "tf_fuse_borrowed")));
}

Tensor BorrowedTensor(char* data, int64_t bytes) {
  return BorrowedTensor(tensorflow::DT_UINT8, data, bytes);
}

Tensor Flat(const Tensor& tensor) {
  Tensor flat;
  // (The same number of elements: it cannot fail.)
  (void)flat.BitcastFrom(tensor, tensor.dtype(),
                         tensorflow::TensorShape({tensor.NumElements()}));
  return flat;
}

}  // namespace tf_fuse
