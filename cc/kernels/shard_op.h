// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Defines the base class of the kernels of collectives on shards: the
// parameters of the call, its group, and how it ends.

#ifndef TF_FUSE_CC_KERNELS_SHARD_OP_H_
#define TF_FUSE_CC_KERNELS_SHARD_OP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/reduce/shard_layout.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fuse {

class ShardOp : public tensorflow::AsyncOpKernel {
 public:
  explicit ShardOp(tensorflow::OpKernelConstruction* c);

  void ComputeAsync(tensorflow::OpKernelContext* c, DoneCallback done) override;

 protected:
  // Does the work; blocks.
  virtual absl::Status Exchange(
      tensorflow::OpKernelContext* c,
      const std::shared_ptr<tensorflow::CollectiveContext>& context) = 0;

  static std::shared_ptr<tensorflow::CollectiveContext> ContextOf(
      tensorflow::OpKernelContext* c, tensorflow::CollectiveExecutor* executor,
      const tensorflow::CollectiveParams* params, const std::string& key);

  // By the attribute `bounds`, or as the ring cuts. Errors: InvalidArgument if
  // the bounds of a tensor do not go from 0 to its end.
  absl::StatusOr<ShardLayout> LayoutOf(
      std::vector<int64_t> sizes,
      const tensorflow::CollectiveContext& context) const;
  // Elements of a tensor that are this member's.
  static int64_t OwnElements(const ShardLayout& layout, size_t tensor,
                             const tensorflow::CollectiveContext& context);

  int tensors() const { return tensors_; }
  tensorflow::DataType type() const { return type_; }

 private:
  struct Execution;

  // A member that never comes is an error, if there is a limit.
  void WatchGroup(const std::shared_ptr<Execution>& execution);
  absl::Status Run(Execution* execution);
  absl::Status CheckBounds(const std::vector<int64_t>& sizes,
                           int members) const;

  const tensorflow::DeviceType device_type_;
  int tensors_ = 0;
  tensorflow::DataType type_ = tensorflow::DT_INVALID;
  bool packed_ = false;
  int groups_ = 1;
  std::vector<int64_t> bounds_;
  int rank_ = -1;
  std::string tag_;
  float timeout_seconds_ = 0;
  std::unique_ptr<tensorflow::OpKernel> merge_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_KERNELS_SHARD_OP_H_
