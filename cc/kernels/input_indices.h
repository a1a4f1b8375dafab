// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Numbers the last inputs of the ops of shard_op_defs.cc, which follow their
// tensors.

#ifndef TF_FUSE_CC_KERNELS_INPUT_INDICES_H_
#define TF_FUSE_CC_KERNELS_INPUT_INDICES_H_

namespace tf_fuse {

inline constexpr int kGroupSize = 0;
inline constexpr int kGroupKey = 1;
inline constexpr int kInstanceKey = 2;
inline constexpr int kParameters = 3;

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_KERNELS_INPUT_INDICES_H_
