// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of TfFuse>ReduceScatter, TfFuse>AllGather and TfFuse>AllReduce.
// They resolve their group as TensorFlow's collectives do, and nothing else:
// there is no instance to look up, so nothing stays of a call. One that fails
// aborts the collectives of its process, as those of TensorFlow do: so other
// members hear of it.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/borrowed_tensor.h"
#include "base/recycled_memory.h"
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
    const ShardLayout layout = LayoutOf(SizesOf(inputs), *context);
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
    const ShardLayout layout = LayoutOf(SizesOf(inputs), *context);
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
  explicit AllGatherOp(OpKernelConstruction* c) : ShardOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("bounds", &bounds_));
  }

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
    status = CheckBounds(sizes, context->col_params->group.group_size);
    if (!status.ok()) return status;
    const ShardLayout layout =
        bounds_.empty()
            ? LayoutOf(std::move(sizes), *context)
            : ShardLayout(std::move(sizes), tensorflow::DataTypeSize(type()),
                          context->col_params->group.group_size, bounds_);
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

  // Of each tensor, they go from 0 to its end, and never back.
  absl::Status CheckBounds(const std::vector<int64_t>& sizes,
                           int members) const {
    if (bounds_.empty()) return absl::OkStatus();
    const size_t each = static_cast<size_t>(members) + 1;
    if (bounds_.size() != sizes.size() * each) {
      return absl::InvalidArgumentError(absl::StrCat(
          name(), ": there are ", bounds_.size(), " bounds; ", sizes.size(),
          " tensors and ", members, " members have ", sizes.size() * each));
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto first = bounds_.begin() + i * each;
      const auto last = first + members;
      if (*first != 0 || *last != sizes[i] ||
          !std::is_sorted(first, first + each)) {
        return absl::InvalidArgumentError(absl::StrCat(
            name(), ": the bounds of tensor ", i, " of ", sizes[i],
            " elements are [", absl::StrJoin(first, first + each, ", "),
            "], which do not go from 0 to its end"));
      }
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> bounds_;
};

}  // namespace

REGISTER_KERNEL_BUILDER(
    Name("TfFuse>ReduceScatter").Device(tensorflow::DEVICE_CPU),
    ReduceScatterOp);
REGISTER_KERNEL_BUILDER(Name("TfFuse>AllReduce").Device(tensorflow::DEVICE_CPU),
                        AllReduceOp);
REGISTER_KERNEL_BUILDER(Name("TfFuse>AllGather").Device(tensorflow::DEVICE_CPU),
                        AllGatherOp);

}  // namespace tf_fuse
