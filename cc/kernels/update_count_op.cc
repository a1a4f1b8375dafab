// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// How often a variable has been updated when a step begins on its server: what
// the step's own update is compared with (see UpdateLog).

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "update/update_counters.h"

namespace tf_fuse {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

REGISTER_OP("TfFuse>UpdateCount")
    .Input("variable: resource")
    .Output("count: int64")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Tells how many updates of a variable have been counted on this server so far.

A step runs it when it begins, and hands the number to its own update
(TfFuse>ElementwiseUpdate or TfFuse>StagedUpdate, `begun`), which counts itself
and notes how many updates of others came in between: the gradient's staleness.

variable: Handle of the variable; what is counted is by its name.
count: A scalar: how many updates with `begun` there were; 0 of a variable that
  none has changed.
)doc");

namespace {

class UpdateCountOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Tensor* count = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &count));
    count->scalar<int64_t>()() =
        UpdateLog::Get()->Count(tensorflow::HandleFromInput(ctx, 0).name());
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfFuse>UpdateCount").Device(tensorflow::DEVICE_CPU), UpdateCountOp);

}  // namespace

}  // namespace tf_fuse
