// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Memory of somebody else, as a tensor.

#ifndef TF_FUSE_CC_BASE_BORROWED_TENSOR_H_
#define TF_FUSE_CC_BASE_BORROWED_TENSOR_H_

#include <cstdint>

#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

// A vector of elements that begin at `data`, which outlives it.
tensorflow::Tensor BorrowedTensor(tensorflow::DataType type, char* data,
                                  int64_t elements);
// Of bytes.
tensorflow::Tensor BorrowedTensor(char* data, int64_t bytes);

// The elements of a tensor as a vector, which holds its memory, too.
tensorflow::Tensor Flat(const tensorflow::Tensor& tensor);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_BASE_BORROWED_TENSOR_H_
