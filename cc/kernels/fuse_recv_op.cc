// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The op _FuseRecv (RFC 20200411-fuse_recv calls it _RecvV2): receives many
// tensors of one other task with one call.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "transport/fuse_rendezvous.h"
#include "transport/message/receive_keys.h"

namespace tf_fuse {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Stateful, like _Recv: it must be neither folded, nor merged with its equal.
// Of communication: else the executor replaces the error of a lost task by an
// InternalError when a step is aborted, and the coordinator would not retry.
#define TF_FUSE_RECV_OP(name)                  \
  REGISTER_OP(name)                            \
      .Output("tensors: tensor_types")         \
      .Output("alive: num_alive * bool")       \
      .Attr("tensor_types: list(type) >= 1")   \
      .Attr("tensor_names: list(string) >= 1") \
      .Attr("send_device: string")             \
      .Attr("send_device_incarnation: int")    \
      .Attr("recv_device: string")             \
      .Attr("client_terminated: bool = false") \
      .Attr("copy_out: list(bool) = []")       \
      .Attr("may_be_dead: list(bool) = []")    \
      .Attr("num_alive: int >= 0 = 0")         \
      .Attr("dynamic: bool = false")           \
      .Attr("joint_sends: list(int) = []")     \
      .SetIsStateful()                         \
      .SetIsDistributedCommunication()         \
      .SetShapeFn(tensorflow::shape_inference::UnknownShape)

TF_FUSE_RECV_OP("_FuseRecv").Doc(R"doc(
Receives the named tensors from send_device on recv_device, in one RPC.

tensors: The tensors received, in the order of tensor_names. One that is dead
  stands as a tensor without elements.
alive: Of each tensor that may be dead, in order, whether it is live.
tensor_names: The names of the tensors, as in _Send and _Recv.
send_device: The name of the device sending the tensors.
send_device_incarnation: The current incarnation of send_device.
recv_device: The name of the device receiving the tensors.
client_terminated: Always false: receives of fed values are not fused.
copy_out: Per tensor, whether its value may be kept longer than the step, and so
  must not share memory with the others. Empty means that none is.
may_be_dead: Per tensor, whether it may be dead. Empty means that none is.
num_alive: How many may be dead.
dynamic: Whether the one tensor it receives shares requests with those of other
  such operations that wait at the same time.
joint_sends: How many tensors each joint send of send_device has, from the first
  on. The others are sent one by one.
)doc");

TF_FUSE_RECV_OP("_HostFuseRecv").Doc(R"doc(
As _FuseRecv, but the tensors are in the memory of the host, whatever the device.
)doc");

namespace {

// What was received, on its way to the memory of a device.
struct DeviceCopies {
  std::vector<Slot> slots;
  std::atomic<size_t> remaining{1};
  absl::Mutex mu;
  absl::Status status ABSL_GUARDED_BY(mu);
};

// Reads the attributes that make up the keys.
absl::Status ReadKeyAttrs(OpKernelConstruction* ctx, FusedKeys* keys) {
  int64_t incarnation = 0;
  absl::Status status = ctx->GetAttr("send_device", &keys->send_device);
  status.Update(ctx->GetAttr("send_device_incarnation", &incarnation));
  keys->send_device_incarnation = static_cast<uint64_t>(incarnation);
  status.Update(ctx->GetAttr("recv_device", &keys->recv_device));
  status.Update(ctx->GetAttr("tensor_names", &keys->tensor_names));
  status.Update(ctx->GetAttr("tensor_types", &keys->types));
  std::vector<int32_t> joint_sends;
  status.Update(ctx->GetAttr("joint_sends", &joint_sends));
  keys->joint_sends.assign(joint_sends.begin(), joint_sends.end());
  return status;
}

class FuseRecvOp : public AsyncOpKernel {
 public:
  explicit FuseRecvOp(OpKernelConstruction* ctx)
      : AsyncOpKernel(ctx),
        copies_to_device_(ctx->device_type() != tensorflow::DEVICE_CPU &&
                          ctx->def().op() == "_FuseRecv") {
    auto keys = std::make_shared<FusedKeys>();
    OP_REQUIRES_OK(ctx, ReadKeyAttrs(ctx, keys.get()));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("copy_out", &keys->copy_out));
    OP_REQUIRES(
        ctx,
        keys->copy_out.empty() || keys->copy_out.size() == keys->types.size(),
        absl::InvalidArgumentError(
            absl::StrCat("_FuseRecv: copy_out has ", keys->copy_out.size(),
                         " entries for ", keys->types.size(), " tensors")));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("may_be_dead", &keys->may_be_dead));
    int num_alive = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_alive", &num_alive));
    OP_REQUIRES(ctx,
                (keys->may_be_dead.empty() ||
                 keys->may_be_dead.size() == keys->types.size()) &&
                    std::count(keys->may_be_dead.begin(),
                               keys->may_be_dead.end(), true) == num_alive,
                absl::InvalidArgumentError(absl::StrCat(
                    "_FuseRecv: may_be_dead has ", keys->may_be_dead.size(),
                    " entries for ", keys->types.size(), " tensors, or not ",
                    num_alive, " that are true")));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dynamic", &dynamic_));
    OP_REQUIRES(ctx, !dynamic_ || keys->types.size() == 1,
                absl::InvalidArgumentError(
                    absl::StrCat("_FuseRecv: dynamic is set for ",
                                 keys->types.size(), " tensors, expected 1")));
    OP_REQUIRES_OK(ctx, FinishFusedKeys(keys.get()));
    keys_ = std::move(keys);
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    auto* rendezvous = dynamic_cast<FuseRendezvous*>(ctx->rendezvous());
    OP_REQUIRES_ASYNC(
        ctx, rendezvous != nullptr,
        absl::FailedPreconditionError(absl::StrCat(
            "fused receive of ", DescribeFusedKeys(*keys_),
            ": this task does not run the protocol 'grpc+fuse'. Start its "
            "server with protocol='grpc+fuse', or switch do_fuse_recv off.")),
        done);
    tensorflow::Rendezvous::Args args;
    args.device_context = ctx->op_device_context();
    // Frames always come to the host, on which they are taken apart.
    args.alloc_attrs.set_on_host(true);
    args.alloc_attrs.set_gpu_compatible(copies_to_device_);
    args.cancellation_manager = ctx->cancellation_manager();
    auto on_slots = [ctx, keys = keys_, to_device = copies_to_device_,
                     done = std::move(done)](const absl::Status& status,
                                             std::vector<Slot> slots) {
      if (!status.ok()) {
        ctx->SetStatus(status);
      } else if (to_device) {
        return CopyToDevice(ctx, *keys, std::move(slots), done);
      } else {
        SetOutputs(ctx, *keys, &slots);
      }
      done();
    };
    if (dynamic_) {
      rendezvous->RecvDynamicAsync(keys_, ctx->frame_iter(), args,
                                   std::move(on_slots));
    } else {
      rendezvous->RecvFusedAsync(keys_, ctx->frame_iter(), args,
                                 std::move(on_slots));
    }
  }

 private:
  // The analysis fuses no receive of a GPU that may be dead, so all are live.
  static void CopyToDevice(OpKernelContext* ctx, const FusedKeys& keys,
                           std::vector<Slot> slots, DoneCallback done) {
    auto copies = std::make_shared<DeviceCopies>();
    copies->slots = std::move(slots);
    auto finish_one = [ctx, copies, done = std::move(done)] {
      if (copies->remaining.fetch_sub(1) != 1) return;
      {
        absl::MutexLock lock(&copies->mu);
        if (!copies->status.ok()) ctx->SetStatus(copies->status);
      }
      done();
    };
    auto fail = [copies](const absl::Status& status) {
      absl::MutexLock lock(&copies->mu);
      copies->status.Update(status);
    };
    auto* device = static_cast<tensorflow::Device*>(ctx->device());
    for (size_t i = 0; i < copies->slots.size(); ++i) {
      const Slot& slot = copies->slots[i];
      if (slot.is_dead || ctx->op_device_context() == nullptr) {
        fail(absl::InternalError(absl::StrCat(
            "fused receive of ", DescribeFusedKeys(keys), ": tensor ",
            keys.tensor_names[i],
            slot.is_dead ? " is dead" : " has no device context to be copied",
            ". Please report this; switch do_fuse_gpu off to go on.")));
        break;
      }
      Tensor* output = nullptr;
      const absl::Status allocated = ctx->allocate_output(
          static_cast<int>(i), slot.tensor.shape(), &output);
      if (!allocated.ok()) {
        fail(allocated);
        break;
      }
      if (slot.tensor.TotalBytes() == 0) continue;
      copies->remaining.fetch_add(1);
      ctx->op_device_context()->CopyCPUTensorToDevice(
          &slot.tensor, device, output,
          [fail, finish_one](const absl::Status& status) {
            fail(status);
            finish_one();
          });
    }
    finish_one();
  }

  static void SetOutputs(OpKernelContext* ctx, const FusedKeys& keys,
                         std::vector<Slot>* slots) {
    int alive = static_cast<int>(slots->size());
    for (size_t i = 0; i < slots->size(); ++i) {
      Slot& slot = (*slots)[i];
      if (!keys.may_be_dead.empty() && keys.may_be_dead[i]) {
        if (slot.is_dead) slot.tensor = Tensor(keys.types[i], TensorShape({0}));
        ctx->set_output(alive++, Tensor(!slot.is_dead));
      } else if (slot.is_dead) {
        // The executor lets only a _Recv or a Switch leave an output empty, and
        // no Switch follows this one, so this is a defect.
        ctx->SetStatus(absl::InternalError(absl::StrCat(
            "fused receive of ", DescribeFusedKeys(keys), ": tensor ",
            keys.tensor_names[i],
            " is dead, but was found to be always live when the graph was "
            "rewritten. Please report this; switch do_fuse_recv off to go "
            "on.")));
        return;
      }
      ctx->set_output(static_cast<int>(i), std::move(slot.tensor));
    }
  }

  bool dynamic_ = false;
  const bool copies_to_device_;
  std::shared_ptr<const FusedKeys> keys_;
};

REGISTER_KERNEL_BUILDER(Name("_FuseRecv").Device(tensorflow::DEVICE_CPU),
                        FuseRecvOp);
REGISTER_KERNEL_BUILDER(Name("_HostFuseRecv").Device(tensorflow::DEVICE_CPU),
                        FuseRecvOp);
REGISTER_KERNEL_BUILDER(
    Name("_FuseRecv").Device(tensorflow::DEVICE_GPU).HostMemory("alive"),
    FuseRecvOp);
REGISTER_KERNEL_BUILDER(Name("_HostFuseRecv")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("tensors")
                            .HostMemory("alive"),
                        FuseRecvOp);

}  // namespace

}  // namespace tf_fuse
