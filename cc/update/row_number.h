// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Reads a row's number from a tensor of int32 or int64.

#ifndef TF_FUSE_CC_UPDATE_ROW_NUMBER_H_
#define TF_FUSE_CC_UPDATE_ROW_NUMBER_H_

#include <cstdint>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_fuse {

// One of the rows' numbers, which are int32 or int64.
inline int64_t RowNumber(const tensorflow::Tensor& indices, int64_t i) {
  return indices.dtype() == tensorflow::DT_INT32
             ? static_cast<const int32_t*>(indices.data())[i]
             : static_cast<const int64_t*>(indices.data())[i];
}

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_ROW_NUMBER_H_
