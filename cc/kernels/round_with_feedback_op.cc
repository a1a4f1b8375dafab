// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Rounds a dense gradient to bfloat16, and adds to it what the roundings before
// lost ("1-Bit Stochastic Gradient Descent", Seide et al., 2014: error
// feedback). What is lost stays in this process: it is part of no graph, so it
// survives a function that is traced again, and of no checkpoint.

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

using tensorflow::bfloat16;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

REGISTER_OP("TfFuse>RoundWithFeedback")
    .Input("gradient: float")
    .Output("rounded: bfloat16")
    .Attr("key: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Rounds a gradient together with what the roundings before it have lost.

gradient: Of any shape. If it has another one than the gradient before, that
  one's loss is forgotten.
rounded: The nearest bfloat16 of each sum, of two the even one. A sum that is
  not finite stays so, and loses nothing.
key: Operations of a process with the same key share what is lost.
)doc");

namespace {

struct Residual {
  std::mutex mutex;
  TensorShape shape;
  std::vector<float> lost;  // Of each element; empty before the first one.
};

// One per key, as long as there is a kernel with that key: when the last
// function with such a gradient has gone, what it lost goes as well.
std::shared_ptr<Residual> ResidualOf(const std::string& key) {
  static auto* const mutex = new std::mutex;
  static auto* const residuals =
      new std::map<std::string, std::weak_ptr<Residual>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  for (auto it = residuals->begin(); it != residuals->end();) {
    it = it->second.expired() ? residuals->erase(it) : std::next(it);
  }
  std::weak_ptr<Residual>& kept = (*residuals)[key];
  std::shared_ptr<Residual> residual = kept.lock();
  if (residual == nullptr) {
    residual = std::make_shared<Residual>();
    kept = residual;
  }
  return residual;
}

class RoundWithFeedbackOp : public OpKernel {
 public:
  explicit RoundWithFeedbackOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string key;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("key", &key));
    residual_ = ResidualOf(key);
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& gradient = ctx->input(0);
    Tensor* rounded = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, gradient.shape(), &rounded));
    const float* in = gradient.flat<float>().data();
    bfloat16* out = rounded->flat<bfloat16>().data();
    const int64_t elements = gradient.NumElements();
    // Steps of one worker that are under way at once take turns.
    const std::lock_guard<std::mutex> lock(residual_->mutex);
    if (residual_->shape != gradient.shape() || residual_->lost.empty()) {
      residual_->shape = gradient.shape();
      residual_->lost.assign(elements, 0.0f);
    }
    float* lost = residual_->lost.data();
    for (int64_t i = 0; i < elements; ++i) {
      const float sum = in[i] + lost[i];
      out[i] = static_cast<bfloat16>(sum);
      const float error = sum - static_cast<float>(out[i]);
      lost[i] = std::isfinite(error) ? error : 0.0f;
    }
  }

 private:
  std::shared_ptr<Residual> residual_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfFuse>RoundWithFeedback").Device(tensorflow::DEVICE_CPU),
    RoundWithFeedbackOp);

}  // namespace

}  // namespace tf_fuse
