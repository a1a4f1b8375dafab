// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// An update of a variable and its slots by a gradient that is of some rows:
// parts of it are on whole variables, and others on those rows. All of it is
// under one lock, and nothing is changed if anything is wrong; but what stages
// keep for others is only known when these have run.

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"
#include "tf_fuse/v1/staged_update.pb.h"
#include "update/locked_variables.h"
#include "update/update_stage.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

REGISTER_OP("TfFuse>StagedUpdate")
    .Input("variables: N * resource")
    .Input("inputs: Tin")
    .Input("begun: C * int64")
    .Attr("N: int >= 1")
    .Attr("Tin: list(type) >= 0")
    .Attr("update: string")
    .Attr("C: int >= 0 = 0")
    .Attr("subject: int = 0")
    .Attr("worker: string = ''")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      return absl::OkStatus();
    })
    .Doc(R"doc(
Updates variables, whole and by rows, stage by stage, all under one lock.

variables: Handles of variables.
inputs: What the stages read: gradients, rates, numbers of rows.
begun: If the update is counted, what TfFuse>UpdateCount told when the step began.
update: A serialized tf_fuse.v1.StagedUpdate.
subject: Of an update that is counted, the variable that stands for all.
worker: The task in whose step it is.
)doc");

namespace {

class StagedUpdateOp : public OpKernel {
 public:
  explicit StagedUpdateOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string serialized;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("update", &serialized));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &variables_));
    OP_REQUIRES_OK(ctx, counted_.Init(ctx, variables_));
    tensorflow::DataTypeVector types;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tin", &types));
    v1::StagedUpdate message;
    OP_REQUIRES(ctx, message.ParseFromString(serialized),
                absl::InvalidArgumentError(
                    "TfFuse>StagedUpdate: the update does not parse"));
    std::vector<DataType> inputs(types.begin(), types.end());
    const int given = static_cast<int>(inputs.size());
    changed_.resize(variables_, false);
    by_row_.resize(variables_, false);
    for (const v1::UpdateStage& one : message.stages()) {
      auto stage = UpdateStage::Make(one, variables_, given, &inputs);
      OP_REQUIRES_OK(ctx, stage.status());
      for (const int variable : stage->Changed()) {
        changed_[variable] = true;
        if (stage->is_by_row()) by_row_[variable] = true;
      }
      stages_.push_back(*std::move(stage));
    }
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList inputs;
    OP_REQUIRES_OK(ctx, ctx->input_list("inputs", &inputs));
    Variables variables;
    OP_REQUIRES_OK(ctx, LookUpVariables(ctx, variables_, &variables));
    const VariableLocks locks(variables);
    for (const auto& variable : variables) {
      OP_REQUIRES(
          ctx, variable->is_initialized,
          UnreadableVariable(variable->DebugString(), "It has no value."));
    }
    StageInputs read(inputs);
    for (const UpdateStage& stage : stages_) {
      // (Those that read what others keep are looked at when that is there.)
      if (stage.reads_kept()) continue;
      OP_REQUIRES_OK(ctx, stage.Check(variables, read));
    }
    for (int i = 0; i < variables_; ++i) {
      OP_REQUIRES_OK(ctx, MakeOwn(ctx, i, *variables[i]));
    }
    for (const UpdateStage& stage : stages_) {
      if (stage.reads_kept()) {
        OP_REQUIRES_OK(ctx, stage.Check(variables, read));
      }
      OP_REQUIRES_OK(ctx, stage.Run(ctx, variables, &read));
    }
    counted_.Add(ctx, locks);
  }

 private:
  // A reader of the old value keeps it. From then on, reads of a variable that
  // is updated by rows copy it, as with TensorFlow's kernels of rows.
  absl::Status MakeOwn(OpKernelContext* ctx, int index, Var& variable) const {
    if (by_row_[index]) variable.copy_on_read_mode.store(true);
    Tensor* value = variable.tensor();
    if (!changed_[index] || value->RefCountIsOne()) return absl::OkStatus();
    Tensor copy;
    absl::Status status =
        ctx->allocate_temp(value->dtype(), value->shape(), &copy);
    if (!status.ok()) return status;
    std::memcpy(copy.data(), value->data(), value->TotalBytes());
    *value = copy;
    return absl::OkStatus();
  }

  int variables_ = 0;
  std::vector<UpdateStage> stages_;
  std::vector<bool> changed_, by_row_;
  CountedUpdate counted_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfFuse>StagedUpdate").Device(tensorflow::DEVICE_CPU), StagedUpdateOp);

}  // namespace

}  // namespace tf_fuse
