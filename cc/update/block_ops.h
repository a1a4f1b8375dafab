// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Computes TensorFlow's elementwise operations on short vectors that stay in
// the cache.

#ifndef TF_FUSE_CC_UPDATE_BLOCK_OPS_H_
#define TF_FUSE_CC_UPDATE_BLOCK_OPS_H_

#include <cstdint>
#include <string_view>

#include "tensorflow/core/framework/types.pb.h"

namespace tf_fuse {

// A vector that an operation reads.
struct BlockOperand {
  const void* data;
  // Whether it is one element that stands for all.
  bool single;
};

// Computes `n` elements. The output may be one of the operands, but not overlap
// one otherwise. The bits are those of TensorFlow's kernel if all calls for a
// tensor but the last have a multiple of kBlockElements; of NaNs, though, the
// sign and the payload may be another operand's, as C++ compilers choose.
using BlockFunction = void (*)(const BlockOperand* operands, void* output,
                               int64_t n);

// A multiple of the elements of each vector register: an approximation may have
// other bits in registers than one by one.
inline constexpr int64_t kBlockElements = 512;

struct BlockOp {
  BlockFunction function = nullptr;  // Null: there is no such operation.
  int operands = 0;
};

// The operation of that name which makes a `result` from operands of the type
// `operand`. (Those of SelectV2 are one bool and two of the type of the
// result, which is `operand`.)
BlockOp FindBlockOp(std::string_view op, tensorflow::DataType operand,
                    tensorflow::DataType result);

// Copies elements of so many bytes: 1, 2, 4 or 8.
BlockFunction CopyOf(int bytes);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_BLOCK_OPS_H_
