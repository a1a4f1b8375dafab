// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A joint send: several tensors of one fused receive under one rendezvous key,
// that of the first. An entry of the rendezvous costs the sender and the
// waiting request about as much time as a copy of some kilobytes.

#ifndef TF_FUSE_CC_TRANSPORT_MESSAGE_JOINT_SEND_H_
#define TF_FUSE_CC_TRANSPORT_MESSAGE_JOINT_SEND_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

// Attributes of a _Send in an operation group: the name of the first tensor of
// its joint send, and its place there.
inline constexpr char kJointSendAttr[] = "_tf_fuse_joint_send";
inline constexpr char kJointPlaceAttr[] = "_tf_fuse_joint_place";

// What stands in the rendezvous: a scalar variant.
tensorflow::Tensor MakeJointSend(std::vector<tensorflow::Tensor> tensors);

// The tensors of `sent`, which keeps them. Errors: Internal if it is anything
// but a joint send of `count` tensors.
absl::StatusOr<absl::Span<const tensorflow::Tensor>> ReadJointSend(
    const tensorflow::Tensor& sent, size_t count);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_MESSAGE_JOINT_SEND_H_
