// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// An op that reports what happened on the task where it runs: for a coordinator
// that runs no server of ours, and so cannot ask by an RPC.

#include <string>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_fuse/v1/fuse_recv.pb.h"
#include "transport/peers/introspection.h"

namespace tf_fuse {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

// Stateful: the answer differs from call to call.
REGISTER_OP("TfFuse>Answer")
    .Output("answer: string")
    .Attr("question: int")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Answers a question about the process that runs this op.

answer: A scalar.
question: A tf_fuse.v1.Question, which says what the answer is.
)doc");

namespace {

class AnswerOp : public OpKernel {
 public:
  explicit AnswerOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("question", &question_));
    OP_REQUIRES(
        ctx, question_ != v1::QUESTION_NONE && v1::Question_IsValid(question_),
        absl::InvalidArgumentError(
            absl::StrCat("TfFuse>Answer: unknown question ", question_)));
  }
  void Compute(OpKernelContext* ctx) override {
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &output));
    output->scalar<tstring>()() =
        AnswerQuestion(static_cast<v1::Question>(question_));
  }

 private:
  int question_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfFuse>Answer").Device(tensorflow::DEVICE_CPU),
                        AnswerOp);

}  // namespace

}  // namespace tf_fuse
