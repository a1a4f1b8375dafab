// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Sends what each member of a group has to another one.

#ifndef TF_FUSE_CC_COLLECTIVES_REDUCE_PERMUTE_H_
#define TF_FUSE_CC_COLLECTIVES_REDUCE_PERMUTE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

// Sends `inputs` (vectors) to the member `receivers` has for this one's rank,
// and receives `outputs`, of the same sizes. `receivers` has each rank once.
// Blocks. Errors: those of DirectExchange.
absl::Status Permute(
    const std::shared_ptr<tensorflow::CollectiveContext>& context,
    const std::vector<int>& receivers,
    const std::vector<tensorflow::Tensor>& inputs,
    std::vector<tensorflow::Tensor>* outputs);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REDUCE_PERMUTE_H_
