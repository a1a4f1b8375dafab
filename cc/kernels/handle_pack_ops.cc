// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A function on parameter servers captures the handle of every variable, and
// every step sends all of them from the coordinator to the worker and on to the
// servers. These ops put the handles of one server into one value that lives
// there, so that a step sends one handle per server.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_op_registry.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_fuse {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Variant;

namespace {

absl::Status InferHandleShapes(
    tensorflow::shape_inference::InferenceContext* c) {
  std::vector<tensorflow::DataType> dtypes;
  std::vector<tensorflow::PartialTensorShape> shapes;
  absl::Status status = c->GetAttr("dtypes", &dtypes);
  status.Update(c->GetAttr("shapes", &shapes));
  if (!status.ok()) return status;
  const size_t outputs = static_cast<size_t>(c->num_outputs());
  if (dtypes.size() != outputs || shapes.size() != outputs) {
    return absl::InvalidArgumentError(
        absl::StrCat("TfFuse>UnpackHandles: ", outputs, " handles, but ",
                     dtypes.size(), " dtypes and ", shapes.size(), " shapes"));
  }
  for (size_t i = 0; i < outputs; ++i) {
    tensorflow::shape_inference::ShapeHandle shape;
    status = c->MakeShapeFromPartialTensorShape(shapes[i], &shape);
    if (!status.ok()) return status;
    c->set_output(static_cast<int>(i), c->Scalar());
    c->set_output_handle_shapes_and_types(static_cast<int>(i),
                                          {{shape, dtypes[i]}});
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfFuse>PackHandles")
    .Input("handles: N * resource")
    .Output("pack: variant")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Packs resource handles of one task into one value.

handles: The handles; the pack keeps what they refer to alive.
pack: A scalar that cannot leave the process.
)doc");

REGISTER_OP("TfFuse>UnpackHandles")
    .Input("pack: variant")
    .Output("handles: N * resource")
    .Attr("N: int >= 1")
    .Attr("dtypes: list(type)")
    .Attr("shapes: list(shape)")
    .SetIsStateful()
    .SetShapeFn(InferHandleShapes)
    .Doc(R"doc(
Returns the handles of a pack, in the order in which they were packed.

pack: What TfFuse>PackHandles returned on this task.
dtypes: Per handle, the type of the value that it refers to.
shapes: Per handle, the shape of that value. TensorFlow's graph optimizations look
  at both, so without them the graph would be optimized otherwise, and its values
  could differ in the last bit.
)doc");

namespace {

struct HandlePack {
  std::vector<Tensor> handles;

  std::string TypeName() const { return "tf_fuse::HandlePack"; }
  // Handles mean nothing in another process, so a copy that arrives there is
  // refused.
  void Encode(tensorflow::VariantTensorData* data) const {
    data->set_type_name(TypeName());
  }
  bool Decode(const tensorflow::VariantTensorData& data) { return false; }
};

REGISTER_UNARY_VARIANT_DECODE_FUNCTION(HandlePack, "tf_fuse::HandlePack");

class PackHandlesOp : public OpKernel {
 public:
  explicit PackHandlesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    HandlePack pack;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      pack.handles.push_back(ctx->input(i));
    }
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &output));
    output->scalar<Variant>()() = std::move(pack);
  }
};

class UnpackHandlesOp : public OpKernel {
 public:
  explicit UnpackHandlesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    OP_REQUIRES(ctx, input.dims() == 0,
                absl::InvalidArgumentError(
                    absl::StrCat("a pack of handles is a scalar, got shape ",
                                 input.shape().DebugString())));
    const HandlePack* pack = input.scalar<Variant>()().get<HandlePack>();
    OP_REQUIRES(ctx, pack != nullptr,
                absl::InvalidArgumentError(
                    absl::StrCat("expected a pack of handles, got ",
                                 input.scalar<Variant>()().TypeName())));
    OP_REQUIRES(ctx, static_cast<int>(pack->handles.size()) == num_outputs(),
                absl::InvalidArgumentError(
                    absl::StrCat("the pack holds ", pack->handles.size(),
                                 " handles, expected ", num_outputs())));
    for (int i = 0; i < num_outputs(); ++i) {
      ctx->set_output(i, pack->handles[i]);
    }
  }
  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(
    Name("TfFuse>PackHandles").Device(tensorflow::DEVICE_CPU), PackHandlesOp);
REGISTER_KERNEL_BUILDER(
    Name("TfFuse>UnpackHandles").Device(tensorflow::DEVICE_CPU),
    UnpackHandlesOp);

}  // namespace

}  // namespace tf_fuse
