// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Lays a tensor out as a serialized RecvTensorResponse.

#ifndef TF_FUSE_CC_SERVER_TENSOR_ANSWER_H_
#define TF_FUSE_CC_SERVER_TENSOR_ANSWER_H_

#include "absl/status/statusor.h"
#include "channel/calls/call_handler.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

// Does not copy values of plain types. Errors: Internal for a tensor beyond
// the limit of protocol buffers (as by gRPC).
absl::StatusOr<AnswerBytes> AnswerWith(const tensorflow::Tensor& tensor,
                                       bool is_dead);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_SERVER_TENSOR_ANSWER_H_
