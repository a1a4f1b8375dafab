// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The operation TfFuse>JoinRows: adds the flagged rows of a table to others.

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "update/append_flagged_rows.h"

namespace tf_fuse {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfFuse>JoinRows")
    .Input("flags: bool")
    .Input("indices: Tindices")
    .Input("values: T")
    .Output("joined_values: T")
    .Output("joined_indices: int64")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("Tindices: {int32, int64}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused, row;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      TF_RETURN_IF_ERROR(c->Subshape(c->input(0), 1, &row));
      ShapeHandle joined;
      TF_RETURN_IF_ERROR(
          c->Concatenate(c->Vector(c->UnknownDim()), row, &joined));
      c->set_output(0, joined);
      c->set_output(1, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Joins rows of a table for which a flag is true to those that values are of.

It is what Keras 3 does where it divides some rows by a whole table: the flags
are of zeros and NaNs of the divisor. A part of TfFuse>StagedUpdate.

flags: For each element of the table.
indices: The numbers of some rows.
values: Of these rows.
joined_values: Of all joined rows: zeros for those that were not there.
joined_indices: The numbers of all joined rows.
)doc");

namespace {

class JoinRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& flags = ctx->input(0);
    OP_REQUIRES(ctx, flags.dims() > 0 && ctx->input(1).dims() == 1,
                absl::InvalidArgumentError(absl::StrCat(
                    "flags must have rows and indices be a vector, they have "
                    "the shapes ",
                    flags.shape().DebugString(), " and ",
                    ctx->input(1).shape().DebugString())));
    Tensor values, indices;
    OP_REQUIRES_OK(ctx, JoinRows(ctx, flags, flags.dim_size(0), ctx->input(1),
                                 ctx->input(2), &values, &indices));
    tensorflow::TensorShape shape = flags.shape();
    shape.set_dim(0, indices.NumElements());
    Tensor shaped;
    OP_REQUIRES(
        ctx, shaped.CopyFrom(values, shape),
        absl::InvalidArgumentError(absl::StrCat(
            "values of shape ", values.shape().DebugString(),
            " are not rows of flags of shape ", flags.shape().DebugString())));
    ctx->set_output(0, shaped);
    ctx->set_output(1, indices);
  }
};

REGISTER_KERNEL_BUILDER(Name("TfFuse>JoinRows").Device(tensorflow::DEVICE_CPU),
                        JoinRowsOp);

}  // namespace

}  // namespace tf_fuse
