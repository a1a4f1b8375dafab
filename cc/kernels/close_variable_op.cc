// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A variable whose value lies in slices elsewhere must not be used by its own
// handle: a function that was traced before has captured it. TensorFlow's
// kernels look neither at the shape of a variable's value nor at whether there
// is one, but they check the type of the resource that a handle points to, and
// return an error that has the resource's name. So the handle itself says that
// it points to something else. Whoever captured it has the same handle: tensors
// share their elements. XLA finds variables by the handle's name and does not
// check it; what it finds has a value of another type, which it neither reads
// nor writes.

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/type_index.h"

namespace tf_fuse {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TypeIndex;
using tensorflow::Var;

REGISTER_OP("TfFuse>CloseVariable")
    .Input("resource: resource")
    .Attr("type_name: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Frees a variable's value. All that uses its handle fails until it is opened.

resource: Handle of the variable. It has to own the variable, as those of eager
  variables do.
type_name: What errors say that the handle points to, also when it is open.
)doc");

REGISTER_OP("TfFuse>OpenVariable")
    .Input("resource: resource")
    .Input("value: dtype")
    .Attr("dtype: type")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Gives a closed variable a value, and makes its handle one that can be used. One
that is open gets the value, so that what failed can be done again.

resource: Handle of the variable. It has to own the variable.
value: What the variable holds then.
)doc");

namespace {

// The type that handles of closed variables say that they point to.
class ClosedVariable {};

bool IsClosed(const ResourceHandle& handle) {
  return handle.hash_code() == TypeIndex::Make<ClosedVariable>().hash_code();
}

// Other threads see what was written before if they see what is written after.
// They read in that order without saying so to the processor, which x86-64
// keeps; on others the kernel interrupts them.
void OrderWrites() {
  std::atomic_thread_fence(std::memory_order_release);
#ifndef __x86_64__
  static const bool registered =
      syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0,
              0) == 0;
  if (registered) {
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
  }
#endif
}

ResourceHandle* MutableHandle(OpKernelContext* ctx) {
  Tensor shared = ctx->input(0);
  return &shared.scalar<ResourceHandle>()();
}

class CloseVariableOp : public OpKernel {
 public:
  explicit CloseVariableOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("type_name", &type_name_));
  }
  void Compute(OpKernelContext* ctx) override {
    ResourceHandle* handle = MutableHandle(ctx);
    OP_REQUIRES(
        ctx, handle->IsRefCounting(),
        absl::FailedPreconditionError(absl::StrCat(
            "variable '", handle->name(),
            "' is found by its name, so other handles of it may exist; make "
            "it eagerly, outside of graphs")));
    tensorflow::core::RefCountPtr<Var> variable;
    OP_REQUIRES_OK(ctx, tensorflow::LookupResource(ctx, *handle, &variable));
    // Another thread may be about to use the handle. It reads the name only
    // once it has seen the other hash code, so the name is not changed after.
    if (handle->maybe_type_name() != type_name_) {
      handle->set_maybe_type_name(type_name_);
      OrderWrites();
    }
    handle->set_hash_code(TypeIndex::Make<ClosedVariable>().hash_code());
    tensorflow::mutex_lock lock(*variable->mu());
    // A kernel that has looked the variable up before sees another type, or
    // another rank where it would end the process at another type.
    const Tensor& value = *variable->tensor();
    const TensorShape other = value.dims() ? TensorShape({}) : TensorShape({0});
    *variable->tensor() =
        Tensor(value.dtype() == tensorflow::DT_BOOL ? tensorflow::DT_INT8
                                                    : tensorflow::DT_BOOL,
               other);
    variable->copy_on_read_mode = false;
  }

 private:
  std::string type_name_;
};

class OpenVariableOp : public OpKernel {
 public:
  explicit OpenVariableOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    ResourceHandle* handle = MutableHandle(ctx);
    const uint64_t opened = TypeIndex::Make<Var>().hash_code();
    OP_REQUIRES(
        ctx,
        handle->IsRefCounting() &&
            (IsClosed(*handle) || handle->hash_code() == opened),
        absl::FailedPreconditionError(absl::StrCat(
            "'", handle->name(), "' is not a variable that can be closed")));
    // A closed handle was a variable's.
    auto* variable = static_cast<Var*>(handle->resource().get());
    {
      tensorflow::mutex_lock lock(*variable->mu());
      *variable->tensor() = ctx->input(1);
      variable->is_initialized = true;
    }
    std::atomic_thread_fence(std::memory_order_release);
    handle->set_hash_code(opened);
  }
};

// Handles are in the host's memory, whichever device has the variable.
REGISTER_KERNEL_BUILDER(Name("TfFuse>CloseVariable")
                            .Device(tensorflow::DEVICE_DEFAULT)
                            .HostMemory("resource"),
                        CloseVariableOp);
REGISTER_KERNEL_BUILDER(Name("TfFuse>OpenVariable")
                            .Device(tensorflow::DEVICE_DEFAULT)
                            .HostMemory("resource"),
                        OpenVariableOp);

}  // namespace

}  // namespace tf_fuse
