// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs reduce-scatter and all-gather of many tensors at once. The shard of rank
// r is chunk r of TensorFlow's ring, summed in the ring's order, so both
// together are its all-reduce, to the last bit.

#ifndef TF_FUSE_CC_COLLECTIVES_REDUCE_SHARD_EXCHANGE_H_
#define TF_FUSE_CC_COLLECTIVES_REDUCE_SHARD_EXCHANGE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "collectives/reduce/shard_layout.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

// Sums `inputs` (vectors, as `layout` has them) of all members into `shards`,
// what this member holds of each; of that, what it sums is written. Blocks.
// Errors: those of DirectExchange.
absl::Status ReduceScatter(
    const std::shared_ptr<tensorflow::CollectiveContext>& context,
    const ShardLayout& layout, const std::vector<tensorflow::Tensor>& inputs,
    std::vector<tensorflow::Tensor>* shards);

// If there are groups, gets what other members that hold the same have summed
// of `shards`. Blocks.
absl::Status ShareSums(
    const std::shared_ptr<tensorflow::CollectiveContext>& context,
    const ShardLayout& layout, std::vector<tensorflow::Tensor>* shards);

// Gathers the shards of all members of the group into `outputs` (vectors).
// Blocks.
absl::Status AllGather(
    const std::shared_ptr<tensorflow::CollectiveContext>& context,
    const ShardLayout& layout, const std::vector<tensorflow::Tensor>& shards,
    std::vector<tensorflow::Tensor>* outputs);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REDUCE_SHARD_EXCHANGE_H_
