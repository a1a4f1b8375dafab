// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Frees the value of a variable that lies in shards, one on each replica. The
// variable has no value of its own until someone asks for its handle.
// TensorFlow's kernels do not check whether a variable is initialized, so who
// has kept the handle reads a tensor without elements. (A tensor without a type
// would be an error there, and end the process elsewhere.)

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_fuse {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

REGISTER_OP("TfFuse>ReleaseVariable")
    .Input("resource: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Frees the memory of a variable's value. Until it is assigned, it has no elements.

resource: Handle of the variable.
)doc");

namespace {

class ReleaseVariableOp : public OpKernel {
 public:
  explicit ReleaseVariableOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(ctx,
                   tensorflow::LookupResource(
                       ctx, tensorflow::HandleFromInput(ctx, 0), &variable));
    tensorflow::mutex_lock lock(*variable->mu());
    *variable->tensor() = Tensor(variable->tensor()->dtype(), TensorShape({0}));
    variable->is_initialized = false;
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfFuse>ReleaseVariable").Device(tensorflow::DEVICE_CPU),
    ReleaseVariableOp);

}  // namespace

}  // namespace tf_fuse
