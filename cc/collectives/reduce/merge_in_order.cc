// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/reduce/merge_in_order.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#else  // aarch64
#include <arm_neon.h>
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/borrowed_tensor.h"
#include "tensorflow/core/common_runtime/collective_util.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::Tensor;

namespace {

// So many elements stay in the first cache while all values are added up.
constexpr int64_t kBlock = 4096;
// What kernels are called with: large enough to make the call cheap.
constexpr int64_t kKernelBytes = 256 << 10;

Tensor GroupSize(DataType type, int size) {
  switch (type) {
    case tensorflow::DT_FLOAT:
      return Tensor(static_cast<float>(size));
    case tensorflow::DT_DOUBLE:
      return Tensor(static_cast<double>(size));
    case tensorflow::DT_HALF:
      return Tensor(static_cast<Eigen::half>(size));
    case tensorflow::DT_BFLOAT16:
      return Tensor(static_cast<tensorflow::bfloat16>(size));
    case tensorflow::DT_INT32:
      return Tensor(static_cast<int32_t>(size));
    default:
      return Tensor(static_cast<int64_t>(size));
  }
}

bool Adds(const tensorflow::CollectiveParams& params) {
  return params.merge_op != nullptr &&
         (params.merge_op->type_string() == "Add" ||
          params.merge_op->type_string() == "AddV2");
}

// Adds what one instruction adds. Of two NaNs the first operand's bits are the
// sum's; a compiler may swap the operands of a sum, but not those of an
// instruction.
#if defined(__x86_64__)
void AddPacket(float* to, const float* first, const float* second) {
  __m128 sum = _mm_loadu_ps(first);
  asm("addps %1, %0" : "+x"(sum) : "x"(_mm_loadu_ps(second)));
  _mm_storeu_ps(to, sum);
}

void AddPacket(double* to, const double* first, const double* second) {
  __m128d sum = _mm_loadu_pd(first);
  asm("addpd %1, %0" : "+x"(sum) : "x"(_mm_loadu_pd(second)));
  _mm_storeu_pd(to, sum);
}

float AddOne(float first, float second) {
  asm("addss %1, %0" : "+x"(first) : "x"(second));
  return first;
}

double AddOne(double first, double second) {
  asm("addsd %1, %0" : "+x"(first) : "x"(second));
  return first;
}
#else  // aarch64
void AddPacket(float* to, const float* first, const float* second) {
  float32x4_t sum = vld1q_f32(first);
  asm("fadd %0.4s, %0.4s, %1.4s" : "+w"(sum) : "w"(vld1q_f32(second)));
  vst1q_f32(to, sum);
}

void AddPacket(double* to, const double* first, const double* second) {
  float64x2_t sum = vld1q_f64(first);
  asm("fadd %0.2d, %0.2d, %1.2d" : "+w"(sum) : "w"(vld1q_f64(second)));
  vst1q_f64(to, sum);
}

float AddOne(float first, float second) {
  asm("fadd %s0, %s0, %s1" : "+w"(first) : "w"(second));
  return first;
}

double AddOne(double first, double second) {
  asm("fadd %d0, %d0, %d1" : "+w"(first) : "w"(second));
  return first;
}
#endif

// The later member's value is the first operand, as in the ring.
template <typename T>
void AddTo(T* to, const T* first, const T* second, int64_t n) {
  if constexpr (std::is_floating_point_v<T>) {
    constexpr int64_t kPacket = 16 / sizeof(T);
    int64_t i = 0;
    for (; i + kPacket <= n; i += kPacket) {
      AddPacket(to + i, first + i, second + i);
    }
    for (; i < n; ++i) to[i] = AddOne(first[i], second[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = first[i] + second[i];
  }
}

}  // namespace

Summing::Summing(const tensorflow::CollectiveContext* context)
    : context_(context),
      type_(context->col_params->instance.data_type),
      adds_(Adds(*context->col_params)),
      group_size_(GroupSize(type_, context->col_params->group.group_size)) {}

absl::Status Summing::Merge(const std::vector<const char*>& values,
                            int64_t elements, char* output) {
  absl::Status status;
  if (adds_ && type_ == tensorflow::DT_FLOAT) {
    Add<float>(values, elements, output);
  } else if (adds_ && type_ == tensorflow::DT_DOUBLE) {
    Add<double>(values, elements, output);
  } else if (adds_ && type_ == tensorflow::DT_INT32) {
    Add<uint32_t>(values, elements, output);  // Wraps around.
  } else if (adds_ && type_ == tensorflow::DT_INT64) {
    Add<uint64_t>(values, elements, output);
  } else {
    status = MergeByKernel(values, elements, output);
  }
  return status.ok() ? Finish(elements, output) : status;
}

template <typename T>
void Summing::Add(const std::vector<const char*>& values, int64_t elements,
                  char* output) {
  alignas(64) T sum[kBlock];
  const size_t last = values.size() - 1;
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t n = std::min(kBlock, elements - begin);
    auto at = [&values, begin](size_t i) {
      return reinterpret_cast<const T*>(values[i]) + begin;
    };
    T* const to = reinterpret_cast<T*>(output) + begin;
    if (last == 0) {
      if (to != at(0)) std::memcpy(to, at(0), n * sizeof(T));
      continue;
    }
    const T* before = at(0);
    for (size_t i = 1; i < last; ++i) {
      AddTo(sum, at(i), before, n);
      before = sum;
    }
    AddTo(to, at(last), before, n);
  }
}

absl::Status Summing::MergeByKernel(const std::vector<const char*>& values,
                                    int64_t elements, char* output) {
  const int64_t size = tensorflow::DataTypeSize(type_);
  const int64_t block = std::min(kKernelBytes / size, elements);
  for (Tensor& scratch : scratch_) {
    if (scratch.NumElements() < block || scratch.dtype() != type_) {
      scratch = Tensor(type_, tensorflow::TensorShape({block}));
    }
  }
  for (int64_t begin = 0; begin < elements; begin += block) {
    const int64_t n = std::min(block, elements - begin);
    Tensor sum = scratch_[0].Slice(0, n);
    Tensor next = scratch_[1].Slice(0, n);
    std::memcpy(sum.data(), values[0] + begin * size, n * size);
    for (size_t i = 1; i < values.size(); ++i) {
      std::memcpy(next.data(), values[i] + begin * size, n * size);
      absl::Status status = tensorflow::collective_util::ComputeBinOp(
          context_->op_ctx, context_->op_params, context_->device,
          context_->col_params->merge_op, &next, &sum);
      if (!status.ok()) return status;
      std::swap(sum, next);
    }
    std::memcpy(output + begin * size, sum.data(), n * size);
  }
  return absl::OkStatus();
}

absl::Status Summing::Finish(int64_t elements, char* output) {
  tensorflow::OpKernel* const final_op = context_->col_params->final_op;
  if (final_op == nullptr) return absl::OkStatus();
  Tensor value = BorrowedTensor(type_, output, elements);
  return tensorflow::collective_util::ComputeBinOp(
      context_->op_ctx, context_->op_params, context_->device, final_op, &value,
      &group_size_);
}

}  // namespace tf_fuse
