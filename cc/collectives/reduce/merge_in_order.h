// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Merges the values of several members element by element, in a given order, to
// the same bits as TensorFlow's ring.

#ifndef TF_FUSE_CC_COLLECTIVES_REDUCE_MERGE_IN_ORDER_H_
#define TF_FUSE_CC_COLLECTIVES_REDUCE_MERGE_IN_ORDER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

class Summing {
 public:
  // Merges with the operation's own kernels.
  explicit Summing(const tensorflow::CollectiveContext* context);

  // output = values[n-1] + (... (values[1] + values[0])), then the final
  // operation. `output` may be the memory of the last value, and no other.
  // All begin at multiples of an element's size.
  absl::Status Merge(const std::vector<const char*>& values, int64_t elements,
                     char* output);

 private:
  template <typename T>
  void Add(const std::vector<const char*>& values, int64_t elements,
           char* output);
  absl::Status MergeByKernel(const std::vector<const char*>& values,
                             int64_t elements, char* output);
  absl::Status Finish(int64_t elements, char* output);

  const tensorflow::CollectiveContext* const context_;
  const tensorflow::DataType type_;
  const bool adds_;
  tensorflow::Tensor scratch_[2];
  tensorflow::Tensor group_size_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REDUCE_MERGE_IN_ORDER_H_
