// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "kernels/shard_op.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/reduce/choose_algorithm.h"
#include "collectives/remote_access/remote_access.h"
#include "collectives/runtime/collective_executor.h"
#include "kernels/input_indices.h"
#include "tensorflow/core/common_runtime/base_collective_executor.h"
#include "tensorflow/core/common_runtime/process_util.h"
#include "tensorflow/core/framework/device.h"

namespace tf_fuse {

using tensorflow::AsyncOpKernel;
using tensorflow::CollectiveContext;
using tensorflow::CollectiveExecutor;
using tensorflow::CollectiveParams;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

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

}  // namespace

// One execution. Whatever happens, it ends once.
struct ShardOp::Execution {
  OpKernelContext* context;
  CollectiveExecutor* executor;
  AsyncOpKernel::DoneCallback done;
  tensorflow::core::IntrusivePtr<CollectiveParams> params;
  std::string key;
  std::shared_ptr<void> under_way;
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
    under_way = nullptr;  // What follows in done() belongs to the call.
  }
};

ShardOp::ShardOp(OpKernelConstruction* c)
    : AsyncOpKernel(c), device_type_(c->device_type()) {
  OP_REQUIRES_OK(c, c->GetAttr("N", &tensors_));
  OP_REQUIRES_OK(c, c->GetAttr("T", &type_));
  OP_REQUIRES_OK(c, c->GetAttr("packed", &packed_));
  OP_REQUIRES_OK(c, c->GetAttr("rank", &rank_));
  OP_REQUIRES_OK(c, c->GetAttr("tag", &tag_));
  OP_REQUIRES_OK(c, c->GetAttr("timeout_seconds", &timeout_seconds_));
  if (c->HasAttr("groups")) OP_REQUIRES_OK(c, c->GetAttr("groups", &groups_));
  if (c->HasAttr("bounds")) OP_REQUIRES_OK(c, c->GetAttr("bounds", &bounds_));
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

void ShardOp::ComputeAsync(OpKernelContext* c, DoneCallback done) {
  CollectiveExecutor* const executor = c->collective_executor();
  OP_REQUIRES_ASYNC(c, executor != nullptr,
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
  auto* const access = FuseRemoteAccess::From(executor->remote_access());
  if (access != nullptr) {
    const absl::Status retired = access->under_way()->retired();
    if (!retired.ok()) return execution->End(retired);
    execution->under_way = access->under_way()->Begin(
        {access->step_id(), params->group.group_key, execution->key + ":"});
  }
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

std::shared_ptr<CollectiveContext> ShardOp::ContextOf(
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

absl::StatusOr<ShardLayout> ShardOp::LayoutOf(
    std::vector<int64_t> sizes, const CollectiveContext& context) const {
  if (!bounds_.empty()) {
    const int members = context.col_params->group.group_size;
    const absl::Status status = CheckBounds(sizes, members);
    if (!status.ok()) return status;
    return ShardLayout(std::move(sizes), tensorflow::DataTypeSize(type_),
                       members, bounds_);
  }
  return ShardLayout(std::move(sizes), tensorflow::DataTypeSize(type_),
                     context.col_params->group.group_size, packed_, groups_);
}

// Of each tensor, they go from 0 to its end, and never back.
absl::Status ShardOp::CheckBounds(const std::vector<int64_t>& sizes,
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

int64_t ShardOp::OwnElements(const ShardLayout& layout, size_t tensor,
                             const CollectiveContext& context) {
  const ShardRange own = layout.Of(tensor, context.col_params->default_rank);
  return own.end - own.begin;
}

void ShardOp::WatchGroup(const std::shared_ptr<Execution>& execution) {
  if (timeout_seconds_ <= 0) return;
  tensorflow::SchedNonBlockingClosureAfter(
      static_cast<int64_t>(timeout_seconds_ * 1e6),
      [weak = std::weak_ptr<Execution>(execution), name = name()] {
        const std::shared_ptr<Execution> execution = weak.lock();
        if (execution == nullptr || execution->has_group) return;
        const auto& group = execution->params->group;
        absl::Status status = absl::DeadlineExceededError(absl::StrCat(
            name, ": timed out waiting for the other members of group ",
            group.group_key, ", which has ", group.group_size, "."));
        const std::string key = absl::StrCat(group.group_key);
        status.SetPayload(kAwaitedGroup, absl::Cord(absl::string_view(key)));
        execution->executor->StartAbort(status);
      });
}

absl::Status ShardOp::Run(Execution* execution) {
  OpKernelContext* const c = execution->context;
  CollectiveParams* const params = execution->params.get();
  for (size_t i = 0; i < params->group.members.size(); ++i) {
    if (params->group.members[i].device.name() == c->device()->name()) {
      params->default_rank = static_cast<int>(i);
    }
  }
  if (params->default_rank < 0) {
    return absl::InternalError(absl::StrCat(name(), ": ", c->device()->name(),
                                            " is not a member of group ",
                                            params->group.group_key));
  }
  if (rank_ >= 0 && rank_ != params->default_rank) {
    return absl::FailedPreconditionError(absl::StrCat(
        name(), ": ", c->device()->name(), " is member ", params->default_rank,
        " of group ", params->group.group_key,
        ", but the graph was made for member ", rank_));
  }
  return Exchange(c, ContextOf(c, execution->executor, params, execution->key));
}

}  // namespace tf_fuse
