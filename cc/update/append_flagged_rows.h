// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Joins flagged rows to the rows of a gradient, as Keras 3 does where it
// divides rows of a table by a whole table: it adds the rows in which the
// divisor has a zero or a NaN, so that the quotient's NaNs reach the weights.

#ifndef TF_FUSE_CC_UPDATE_APPEND_FLAGGED_ROWS_H_
#define TF_FUSE_CC_UPDATE_APPEND_FLAGGED_ROWS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

// Joins the rows in which a flag is true to those with the numbers `indices`,
// int32 or int64.
//
// Without such a flag, `values` and `indices` are handed on. Otherwise the rows
// come in the order of their numbers, and those that join have zeros; but if
// there are as many rows as there were, the values stay in their order, as
// Keras has it. A number that is there more than once is an error, or stands
// for another row, as Keras has it too.
//
// `flags` has the same number of elements for each of `rows` rows, and `values`
// as many for each of `indices`. Both may be of any shape.
absl::Status JoinRows(tensorflow::OpKernelContext* ctx,
                      const tensorflow::Tensor& flags, int64_t rows,
                      const tensorflow::Tensor& indices,
                      const tensorflow::Tensor& values,
                      tensorflow::Tensor* joined_values,
                      tensorflow::Tensor* joined_indices);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_APPEND_FLAGGED_ROWS_H_
