// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of TfFuse>ReduceScatter, TfFuse>AllGather and TfFuse>AllReduce.
// They resolve their group as TensorFlow's collectives do, and nothing else:
// there is no instance to look up, so nothing stays of a call. One that fails
// aborts the collectives of its process, as those of TensorFlow do: so other
// members hear of it.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/algorithm.h"
#include "collectives/borrowed_tensor.h"
#include "collectives/memory.h"
#include "collectives/shard_exchange.h"
#include "kernels/shard_op_inputs.h"
#include "tensorflow/core/common_runtime/base_collective_executor.h"
#include "tensorflow/core/common_runtime/process_util.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fuse {

using tensorflow::AsyncOpKernel;
using tensorflow::CollectiveContext;
using tensorflow::CollectiveExecutor;
using tensorflow::CollectiveParams;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// Reaches what executors keep for their own.
class ParamsOf : public CollectiveExecutor {
 public:
  static OpKernelContext::Params* Get(OpKernelContext* context) {
    return CtxParams(context);
  }
};

// Why the collectives of an executor were aborted; OK if they were not.
class AbortOf : public tensorflow::BaseCollectiveExecutor {
 public:
  static absl::Status Get(CollectiveExecutor* executor) {
    auto* const base = dynamic_cast<BaseCollectiveExecutor*>(executor);
    if (base == nullptr) return absl::OkStatus();
    tensorflow::mutex_lock lock(base->*(&AbortOf::status_mu_));
    return base->*(&AbortOf::status_);
  }
};

// One execution. Whatever happens, it ends once.
struct Execution {
  OpKernelContext* context;
  CollectiveExecutor* executor;
  AsyncOpKernel::DoneCallback done;
  tensorflow::core::IntrusivePtr<CollectiveParams> params;
  std::string key;
  std::atomic<bool> has_group{false};

  ~Execution() { executor->Unref(); }

  void End(const absl::Status& status) {
    tensorflow::CancellationManager* const cancellation =
        context->cancellation_manager();
    const bool cancelled =
        cancellation != nullptr &&
        (cancellation->IsCancelled() || cancellation->IsCancelling());
    if (!status.ok()) {
      // Other members hear of it, as with TensorFlow's collectives.
      if (!cancelled) executor->StartAbort(status);
      // What an abort has cancelled says nothing of the reason.
      const absl::Status reason = AbortOf::Get(executor);
      const bool derived =
          absl::IsCancelled(status) && !cancelled && !reason.ok();
      context->SetStatus(derived ? reason : status);
    }
    done();
  }
};

class ShardOp : public AsyncOpKernel {
 public:
  explicit ShardOp(OpKernelConstruction* c)
      : AsyncOpKernel(c), device_type_(c->device_type()) {
    OP_REQUIRES_OK(c, c->GetAttr("N", &tensors_));
    OP_REQUIRES_OK(c, c->GetAttr("T", &type_));
    OP_REQUIRES_OK(c, c->GetAttr("packed", &packed_));
    OP_REQUIRES_OK(c, c->GetAttr("rank", &rank_));
    OP_REQUIRES_OK(c, c->GetAttr("tag", &tag_));
    OP_REQUIRES_OK(c, c->GetAttr("timeout_seconds", &timeout_seconds_));
    if (c->HasAttr("groups")) OP_REQUIRES_OK(c, c->GetAttr("groups", &groups_));
    tensorflow::NodeDef merge;
    merge.set_name(absl::StrCat(c->def().name(), "_merge"));
    merge.set_op("Add");
    merge.set_device(c->def().device());
    merge.add_input("a");
    merge.add_input("b");
    (*merge.mutable_attr())["T"].set_type(type_);
    absl::Status status;
    merge_ = tensorflow::CreateOpKernel(
        device_type_, c->device(),
        c->device()->GetAllocator(tensorflow::AllocatorAttributes()), merge,
        c->graph_def_version(), &status);
    OP_REQUIRES_OK(c, status);
  }

  void ComputeAsync(OpKernelContext* c, DoneCallback done) override {
    CollectiveExecutor* const executor = c->collective_executor();
    OP_REQUIRES_ASYNC(
        c, executor != nullptr,
        absl::FailedPreconditionError(absl::StrCat(
            name(),
            ": collectives need a server or a function's executor; "
            "this one has none")),
        done);
    int32_t values[kParameters];
    const int first = c->num_inputs() - kParameters;
    for (int i = 0; i < kParameters; ++i) {
      const Tensor& value = c->input(first + i);
      OP_REQUIRES_ASYNC(
          c, tensorflow::TensorShapeUtils::IsScalar(value.shape()),
          absl::InvalidArgumentError(absl::StrCat(
              name(),
              ": group_size, group_key and instance_key are scalars, "
              "got shape ",
              value.shape().DebugString())),
          done);
      values[i] = value.scalar<int32_t>()();
    }
    OP_REQUIRES_ASYNC(c, values[kGroupSize] > 0,
                      absl::InvalidArgumentError(absl::StrCat(
                          name(), ": group_size is ", values[kGroupSize],
                          ", expected 1 or more")),
                      done);
    OP_REQUIRES_ASYNC(
        c, values[kGroupSize] % groups_ == 0,
        absl::InvalidArgumentError(absl::StrCat(
            name(), ": ", values[kGroupSize], " members cannot be in ", groups_,
            " groups of one size; choose a divisor")),
        done);
    auto execution = std::make_shared<Execution>();
    executor->Ref();
    execution->context = c;
    execution->executor = executor;
    execution->done = std::move(done);
    execution->params = tensorflow::core::IntrusivePtr<CollectiveParams>(
        new CollectiveParams(), /*add_ref=*/false);
    execution->key = absl::StrCat(
        type_string(), tag_, ":", values[kGroupKey], ":", values[kInstanceKey],
        ":", c->frame_iter().frame_id, ":", c->frame_iter().iter_id);
    CollectiveParams* const params = execution->params.get();
    params->name = name();
    params->group.group_size = values[kGroupSize];
    params->group.group_key = values[kGroupKey];
    params->group.device_type = device_type_;
    params->instance.instance_key = values[kInstanceKey];
    params->instance.type = tensorflow::REDUCE_SCATTER_COLLECTIVE;
    params->instance.data_type = type_;
    params->instance.impl_details.collective_name = type_string();
    params->instance.impl_details.timeout_seconds = timeout_seconds_;
    TakeOverTimeout(&params->instance);
    params->merge_op = merge_.get();
    WatchGroup(execution);
    executor->CompleteGroupAsync(
        c->device()->attributes(), &params->group, c->cancellation_manager(),
        [this, execution](const absl::Status& status) {
          execution->has_group = true;
          if (!status.ok()) return execution->End(status);
          // It waits for other members: not on this thread.
          execution->executor->RunClosure(
              [this, execution] { execution->End(Run(execution.get())); });
        });
  }

 protected:
  // Does the work; blocks.
  virtual absl::Status Exchange(
      OpKernelContext* c,
      const std::shared_ptr<CollectiveContext>& context) = 0;

  static std::shared_ptr<CollectiveContext> ContextOf(
      OpKernelContext* c, CollectiveExecutor* executor,
      const CollectiveParams* params, const std::string& key) {
    auto context = std::make_shared<CollectiveContext>(
        executor, /*nccl_communicator=*/nullptr, /*dev_mgr=*/nullptr, c,
        ParamsOf::Get(c), params, key, c->step_id(), /*input=*/nullptr,
        /*output=*/nullptr);
    context->device = static_cast<tensorflow::Device*>(c->device());
    context->device_locality = c->device()->attributes().locality();
    return context;
  }

  ShardLayout LayoutOf(std::vector<int64_t> sizes,
                       const CollectiveContext& context) const {
    return ShardLayout(std::move(sizes), tensorflow::DataTypeSize(type_),
                       context.col_params->group.group_size, packed_, groups_);
  }
  // Elements of a tensor that are this member's.
  static int64_t OwnElements(const ShardLayout& layout, size_t tensor,
                             const CollectiveContext& context) {
    const ShardRange own = layout.Of(tensor, context.col_params->default_rank);
    return own.end - own.begin;
  }

  int tensors() const { return tensors_; }
  tensorflow::DataType type() const { return type_; }

 private:
  // A member that never comes is an error, if there is a limit.
  void WatchGroup(const std::shared_ptr<Execution>& execution) {
    if (timeout_seconds_ <= 0) return;
    tensorflow::SchedNonBlockingClosureAfter(
        static_cast<int64_t>(timeout_seconds_ * 1e6),
        [weak = std::weak_ptr<Execution>(execution), name = name()] {
          const std::shared_ptr<Execution> execution = weak.lock();
          if (execution == nullptr || execution->has_group) return;
          execution->executor->StartAbort(
              absl::DeadlineExceededError(absl::StrCat(
                  name, ": timed out waiting for the other members of group ",
                  execution->params->group.group_key, ", which has ",
                  execution->params->group.group_size)));
        });
  }

  absl::Status Run(Execution* execution) {
    OpKernelContext* const c = execution->context;
    CollectiveParams* const params = execution->params.get();
    for (size_t i = 0; i < params->group.members.size(); ++i) {
      if (params->group.members[i].device.name() == c->device()->name()) {
        params->default_rank = static_cast<int>(i);
      }
    }
    if (params->default_rank < 0) {
      return absl::InternalError(absl::StrCat(name(), ": ", c->device()->name(),
                                              " is no member of group ",
                                              params->group.group_key));
    }
    if (rank_ >= 0 && rank_ != params->default_rank) {
      return absl::FailedPreconditionError(absl::StrCat(
          name(), ": ", c->device()->name(), " is member ",
          params->default_rank, " of group ", params->group.group_key,
          ", but the graph was made for member ", rank_));
    }
    return Exchange(c,
                    ContextOf(c, execution->executor, params, execution->key));
  }

  const tensorflow::DeviceType device_type_;
  int tensors_ = 0;
  tensorflow::DataType type_ = tensorflow::DT_INVALID;
  bool packed_ = false;
  int groups_ = 1;
  int rank_ = -1;
  std::string tag_;
  float timeout_seconds_ = 0;
  std::unique_ptr<OpKernel> merge_;
};

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
                               absl::StrCat(context->exec_key, ":sums")),
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
                               absl::StrCat(context->exec_key, ":gather")),
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
