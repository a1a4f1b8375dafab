// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "update/scatter_rows.h"

#include <cstdint>

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

using tensorflow::Tensor;
using tensorflow::Var;

namespace {

// TensorFlow's kernel updates more rows than these in parallel.
constexpr int64_t kMaxRows = 1023;

// Rows lie anywhere in a table that no cache holds, so each is asked for while
// these before it are updated.
constexpr int64_t kRowsAhead = 8;

// The shapes that TensorFlow's kernel takes, but for scalar updates.
bool HasRightShapes(const Tensor& value, const Tensor& indices,
                    const Tensor& updates) {
  if (value.dims() == 0 || updates.dims() == 0 ||
      updates.dims() != indices.dims() + value.dims() - 1) {
    return false;
  }
  const int64_t rows = indices.NumElements();
  return rows > 0 && rows <= kMaxRows && value.dim_size(0) > 0 &&
         updates.NumElements() ==
             rows * (value.NumElements() / value.dim_size(0));
}

// Checked first, since a wrong one must not leave rows updated here that the
// kernel, which reports it, updates once more.
template <typename Index>
bool AreInRange(const Index* indices, int64_t rows, int64_t limit) {
  for (int64_t i = 0; i < rows; ++i) {
    if (indices[i] < 0 || indices[i] >= limit) return false;
  }
  return true;
}

// In fours, which the compiler makes one instruction of.
template <typename T>
void Add(T* __restrict to, const T* __restrict from, int64_t count) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t j = i; j < i + 4; ++j) to[j] += from[j];
  }
  for (; i < count; ++i) to[i] += from[i];
}

template <typename T>
void Subtract(T* __restrict to, const T* __restrict from, int64_t count) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t j = i; j < i + 4; ++j) to[j] -= from[j];
  }
  for (; i < count; ++i) to[i] -= from[i];
}

template <typename T, typename Index>
bool Scatter(const Tensor& value, const Tensor& indices, const Tensor& updates,
             bool subtract) {
  const int64_t rows = indices.NumElements();
  const int64_t width = value.NumElements() / value.dim_size(0);
  const Index* row_of = indices.flat<Index>().data();
  if (!AreInRange(row_of, rows, value.dim_size(0))) return false;
  T* to = const_cast<T*>(value.flat<T>().data());
  const T* from = updates.flat<T>().data();
  const auto prefetch = [&](int64_t i) {
    if (i < rows) __builtin_prefetch(to + row_of[i] * width, /*rw=*/1);
  };
  for (int64_t i = 0; i < kRowsAhead; ++i) prefetch(i);
  for (int64_t i = 0; i < rows; ++i, from += width) {
    prefetch(i + kRowsAhead);
    if (subtract) {
      Subtract(to + row_of[i] * width, from, width);
    } else {
      Add(to + row_of[i] * width, from, width);
    }
  }
  return true;
}

template <typename T>
bool ScatterBy(const Tensor& value, const Tensor& indices,
               const Tensor& updates, bool subtract) {
  if (indices.dtype() == tensorflow::DT_INT32) {
    return Scatter<T, int32_t>(value, indices, updates, subtract);
  }
  return indices.dtype() == tensorflow::DT_INT64 &&
         Scatter<T, int64_t>(value, indices, updates, subtract);
}

}  // namespace

bool ScatterRows(tensorflow::OpKernelContext* ctx, bool subtract) {
  if (ctx->input_dtype(0) != tensorflow::DT_RESOURCE) return false;
  tensorflow::core::RefCountPtr<Var> variable;
  if (!LookupResource(ctx, tensorflow::HandleFromInput(ctx, 0), &variable)
           .ok()) {
    return false;
  }
  tensorflow::tf_shared_lock lock(*variable->mu());
  // The first sparse access makes the variable one that is copied when it is
  // read; only then is a lock for readers enough to write to rows.
  if (!variable->copy_on_read_mode.load()) return false;
  const Tensor& value = *variable->tensor();
  const Tensor& indices = ctx->input(1);
  const Tensor& updates = ctx->input(2);
  if (!value.IsInitialized() || value.dtype() != updates.dtype() ||
      !HasRightShapes(value, indices, updates)) {
    return false;
  }
  if (value.dtype() == tensorflow::DT_FLOAT) {
    return ScatterBy<float>(value, indices, updates, subtract);
  }
  return value.dtype() == tensorflow::DT_DOUBLE &&
         ScatterBy<double>(value, indices, updates, subtract);
}

}  // namespace tf_fuse
