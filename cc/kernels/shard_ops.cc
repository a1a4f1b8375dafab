// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of TfFuse>ReduceScatter, TfFuse>AllGather, TfFuse>AllReduce and
// TfFuse>Permute.
// They resolve their group as TensorFlow's collectives do, and nothing else:
// there is no instance to look up, so nothing stays of a call. One that fails
// aborts the collectives of its process, as those of TensorFlow do: so other
// members hear of it.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/borrowed_tensor.h"
#include "base/recycled_memory.h"
#include "collectives/reduce/permute.h"
#include "collectives/reduce/shard_exchange.h"
#include "collectives/remote_access/awaited_members.h"
#include "kernels/shard_op.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fuse {

using tensorflow::CollectiveContext;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// Views of tensors as vectors.
std::vector<Tensor> Flattened(OpKernelContext* c, int first, int count) {
  std::vector<Tensor> flat;
  for (int i = 0; i < count; ++i) flat.push_back(Flat(c->input(first + i)));
  return flat;
}

// Output `i`, of `shape`, and as a vector.
absl::Status AllocateOutput(OpKernelContext* c, int i, const TensorShape& shape,
                            Tensor* flat) {
  Tensor* output = nullptr;
  const absl::Status status = c->allocate_output(i, shape, &output);
  if (!status.ok()) return status;
  AdviseHugePages(output->data(), output->TotalBytes());
  *flat = Flat(*output);
  return absl::OkStatus();
}

std::vector<int64_t> SizesOf(const std::vector<Tensor>& tensors) {
  std::vector<int64_t> sizes;
  for (const Tensor& tensor : tensors) sizes.push_back(tensor.NumElements());
  return sizes;
}

class ReduceScatterOp : public ShardOp {
 public:
  using ShardOp::ShardOp;

 protected:
  absl::Status Exchange(
      OpKernelContext* c,
      const std::shared_ptr<CollectiveContext>& context) override {
    const std::vector<Tensor> inputs = Flattened(c, 0, tensors());
    const absl::StatusOr<ShardLayout> found =
        LayoutOf(SizesOf(inputs), *context);
    if (!found.ok()) return found.status();
    const ShardLayout& layout = *found;
    std::vector<Tensor> shards(tensors());
    for (int i = 0; i < tensors(); ++i) {
      const int64_t own = OwnElements(layout, i, *context);
      const absl::Status status =
          AllocateOutput(c, i, TensorShape({own}), &shards[i]);
      if (!status.ok()) return status;
    }
    const absl::Status status = ReduceScatter(context, layout, inputs, &shards);
    if (!status.ok() || layout.groups() == 1) return status;
    return ShareSums(ContextOf(c, context->col_exec, context->col_params.get(),
                               absl::StrCat(context->exec_key, kSumsStage)),
                     layout, &shards);
  }
};

class AllReduceOp : public ShardOp {
 public:
  using ShardOp::ShardOp;

 protected:
  absl::Status Exchange(
      OpKernelContext* c,
      const std::shared_ptr<CollectiveContext>& context) override {
    const std::vector<Tensor> inputs = Flattened(c, 0, tensors());
    const absl::StatusOr<ShardLayout> found =
        LayoutOf(SizesOf(inputs), *context);
    if (!found.ok()) return found.status();
    const ShardLayout& layout = *found;
    std::vector<Tensor> shards(tensors());
    std::vector<Tensor> outputs(tensors());
    for (int i = 0; i < tensors(); ++i) {
      const int64_t own = OwnElements(layout, i, *context);
      absl::Status status =
          c->allocate_temp(type(), TensorShape({own}), &shards[i]);
      if (!status.ok()) return status;
      status = AllocateOutput(c, i, c->input(i).shape(), &outputs[i]);
      if (!status.ok()) return status;
    }
    const absl::Status status = ReduceScatter(context, layout, inputs, &shards);
    if (!status.ok()) return status;
    // Of another key: a member may begin with this while others do not.
    return AllGather(ContextOf(c, context->col_exec, context->col_params.get(),
                               absl::StrCat(context->exec_key, kGatherStage)),
                     layout, shards, &outputs);
  }
};

class AllGatherOp : public ShardOp {
 public:
  using ShardOp::ShardOp;

 protected:
  absl::Status Exchange(
      OpKernelContext* c,
      const std::shared_ptr<CollectiveContext>& context) override {
    const std::vector<Tensor> shards = Flattened(c, 0, tensors());
    std::vector<TensorShape> shapes;
    absl::Status status = ReadShapes(c, &shapes);
    if (!status.ok()) return status;
    std::vector<int64_t> sizes;
    for (const TensorShape& shape : shapes) {
      sizes.push_back(shape.num_elements());
    }
    const absl::StatusOr<ShardLayout> found =
        LayoutOf(std::move(sizes), *context);
    if (!found.ok()) return found.status();
    const ShardLayout& layout = *found;
    std::vector<Tensor> outputs(tensors());
    for (int i = 0; i < tensors(); ++i) {
      const int64_t own = OwnElements(layout, i, *context);
      if (own != shards[i].NumElements()) {
        return absl::InvalidArgumentError(absl::StrCat(
            name(), ": tensor ", i, " of shape ", shapes[i].DebugString(),
            ": the shard of member ", context->col_params->default_rank, " of ",
            context->col_params->group.group_size, " has ", own,
            " elements, got ", shards[i].NumElements()));
      }
      status = AllocateOutput(c, i, shapes[i], &outputs[i]);
      if (!status.ok()) return status;
    }
    return AllGather(context, layout, shards, &outputs);
  }

 private:
  absl::Status ReadShapes(OpKernelContext* c,
                          std::vector<TensorShape>* shapes) const {
    for (int i = 0; i < tensors(); ++i) {
      const Tensor& value = c->input(tensors() + i);
      if (!tensorflow::TensorShapeUtils::IsVector(value.shape())) {
        return absl::InvalidArgumentError(
            absl::StrCat(name(), ": shape ", i, " is a vector, got ",
                         value.shape().DebugString()));
      }
      shapes->emplace_back();
      const absl::Status status = tensorflow::TensorShapeUtils::MakeShape(
          value.vec<int64_t>().data(), value.NumElements(), &shapes->back());
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
};

// A member that keeps what it has returns its input.
class PermuteOp : public ShardOp {
 public:
  explicit PermuteOp(OpKernelConstruction* c) : ShardOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("receivers", &receivers_));
  }

 protected:
  absl::Status Exchange(
      OpKernelContext* c,
      const std::shared_ptr<CollectiveContext>& context) override {
    const int size = context->col_params->group.group_size;
    std::vector<int> each = receivers_;
    std::sort(each.begin(), each.end());
    bool permutes = static_cast<int>(each.size()) == size;
    for (int i = 0; permutes && i < size; ++i) permutes = each[i] == i;
    if (!permutes) {
      return absl::InvalidArgumentError(absl::StrCat(
          name(), ": receivers are [", absl::StrJoin(receivers_, ", "),
          "]; each of the ", size, " members receives from exactly one"));
    }
    const int rank = context->col_params->default_rank;
    if (receivers_[rank] == rank) {
      for (int i = 0; i < tensors(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    }
    std::vector<Tensor> outputs(tensors());
    for (int i = 0; i < tensors(); ++i) {
      const absl::Status status =
          AllocateOutput(c, i, c->input(i).shape(), &outputs[i]);
      if (!status.ok()) return status;
    }
    return Permute(context, receivers_, Flattened(c, 0, tensors()), &outputs);
  }

 private:
  std::vector<int> receivers_;
};

}  // namespace

REGISTER_KERNEL_BUILDER(
    Name("TfFuse>ReduceScatter").Device(tensorflow::DEVICE_CPU),
    ReduceScatterOp);
REGISTER_KERNEL_BUILDER(Name("TfFuse>AllReduce").Device(tensorflow::DEVICE_CPU),
                        AllReduceOp);
REGISTER_KERNEL_BUILDER(Name("TfFuse>AllGather").Device(tensorflow::DEVICE_CPU),
                        AllGatherOp);
REGISTER_KERNEL_BUILDER(Name("TfFuse>Permute").Device(tensorflow::DEVICE_CPU),
                        PermuteOp);

}  // namespace tf_fuse
