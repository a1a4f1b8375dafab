// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "kernels/gather_rows.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

using tensorflow::Tensor;
using tensorflow::Var;

namespace {

// TensorFlow's kernel copies more in parallel.
constexpr int64_t kMaxReadBytes = 64 << 10;

// Rows lie anywhere in a table that no cache holds, so each is asked for while
// these before it are copied.
constexpr int64_t kReadsAhead = 8;

template <typename Index>
bool CopyRows(const Tensor& value, const Tensor& indices, int64_t row_bytes,
              char* to) {
  const int64_t rows = indices.NumElements();
  const int64_t limit = value.dim_size(0);
  const Index* row_of = indices.flat<Index>().data();
  for (int64_t i = 0; i < rows; ++i) {
    if (row_of[i] < 0 || row_of[i] >= limit) return false;
  }
  const char* from = value.tensor_data().data();
  const auto prefetch = [&](int64_t i) {
    if (i < rows) __builtin_prefetch(from + row_of[i] * row_bytes);
  };
  for (int64_t i = 0; i < kReadsAhead; ++i) prefetch(i);
  for (int64_t i = 0; i < rows; ++i, to += row_bytes) {
    prefetch(i + kReadsAhead);
    std::memcpy(to, from + row_of[i] * row_bytes,
                static_cast<size_t>(row_bytes));
  }
  return true;
}

}  // namespace

bool GatherRows(tensorflow::OpKernelContext* ctx) {
  const Tensor& indices = ctx->input(1);
  tensorflow::core::RefCountPtr<Var> variable;
  if (!LookupResource(ctx, tensorflow::HandleFromInput(ctx, 0), &variable)
           .ok()) {
    return false;
  }
  tensorflow::tf_shared_lock lock(*variable->mu());
  const Tensor& value = *variable->tensor();
  if (!value.IsInitialized() ||
      value.dtype() != ctx->expected_output_dtype(0) || value.dims() == 0 ||
      value.dim_size(0) == 0 ||
      !tensorflow::DataTypeCanUseMemcpy(value.dtype())) {
    return false;
  }
  const int64_t row_bytes =
      static_cast<int64_t>(value.TotalBytes()) / value.dim_size(0);
  const int64_t rows = indices.NumElements();
  if (rows == 0 || row_bytes == 0 || row_bytes > kMaxReadBytes ||
      rows > kMaxReadBytes / row_bytes) {
    return false;
  }
  tensorflow::TensorShape shape = indices.shape();
  for (int i = 1; i < value.dims(); ++i) {
    if (!shape.AddDimWithStatus(value.dim_size(i)).ok()) return false;
  }
  Tensor rows_read;
  if (!ctx->allocate_temp(value.dtype(), shape, &rows_read).ok()) return false;
  char* to = const_cast<char*>(rows_read.tensor_data().data());
  const bool read = indices.dtype() == tensorflow::DT_INT32
                        ? CopyRows<int32_t>(value, indices, row_bytes, to)
                        : indices.dtype() == tensorflow::DT_INT64 &&
                              CopyRows<int64_t>(value, indices, row_bytes, to);
  if (read) ctx->set_output(0, std::move(rows_read));
  return read;
}

}  // namespace tf_fuse
