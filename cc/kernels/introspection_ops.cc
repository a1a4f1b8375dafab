// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Ops that tell a coordinator what happened on the task where they run.

#include <string>
#include <vector>

#include "passes/fuse_recv_pass.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "transport/metrics.h"

namespace tf_fuse {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

// Stateful: the answer differs from call to call.
REGISTER_OP("TfFuse>Metrics")
    .Output("json: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns the counters of the process that runs this op.

json: A scalar: one JSON object.
)doc");

REGISTER_OP("TfFuse>Reports")
    .Output("reports: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns what the fuse_recv pass did to the last functions of this process.

reports: Serialized tf_fuse.v1.FuseReport messages, oldest first.
)doc");

namespace {

class MetricsOp : public OpKernel {
 public:
  explicit MetricsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &output));
    output->scalar<tstring>()() = Metrics::Get()->ToJson();
  }
};

class ReportsOp : public OpKernel {
 public:
  explicit ReportsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    const std::vector<v1::FuseReport> reports = RecentReports();
    Tensor* output = nullptr;
    OP_REQUIRES_OK(
        ctx,
        ctx->allocate_output(
            0, TensorShape({static_cast<int64_t>(reports.size())}), &output));
    auto out = output->vec<tstring>();
    for (size_t i = 0; i < reports.size(); ++i) {
      out(static_cast<int64_t>(i)) = reports[i].SerializeAsString();
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("TfFuse>Metrics").Device(tensorflow::DEVICE_CPU),
                        MetricsOp);
REGISTER_KERNEL_BUILDER(Name("TfFuse>Reports").Device(tensorflow::DEVICE_CPU),
                        ReportsOp);

}  // namespace

}  // namespace tf_fuse
