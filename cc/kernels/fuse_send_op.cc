// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The op _FuseSend: packs tensors into one frame and sends that, where the
// receiver's _FuseRecv asks for the frame by its name.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/fused_attrs.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "transport/fused_keys.h"
#include "transport/limits.h"
#include "transport/tensor_frame.h"

namespace tf_fuse {

using tensorflow::FrameAndIter;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

// Stateful and of communication, like _Send: see _FuseRecv.
REGISTER_OP("_FuseSend")
    .Input("tensors: tensor_types")
    .Attr("tensor_types: list(type) >= 1")
    .Attr("tensor_names: list(string) >= 1")
    .Attr("packed_name: string")
    .Attr("frame_version: int >= 0")
    .Attr("max_frame_bytes: int >= 0")
    .Attr("send_device: string")
    .Attr("send_device_incarnation: int")
    .Attr("recv_device: string")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Sends the tensors from send_device to recv_device, packed into one frame.

tensors: The tensors to send. None of them may be dead.
tensor_names: Their names. A tensor that is too large for the frame is sent
  under its own, as by _Send.
packed_name: The name of the frame, a uint8 vector.
frame_version: The newest frames that the receiver reads.
max_frame_bytes: How many bytes the payloads of a frame may have for it.
send_device: The name of the device sending the tensors.
send_device_incarnation: The current incarnation of send_device.
recv_device: The name of the device receiving the tensors.
)doc");

namespace {

class FuseSendOp : public OpKernel {
 public:
  explicit FuseSendOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadKeyAttrs(ctx, &keys_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("frame_version", &frame_version_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_frame_bytes", &max_frame_bytes_));
    OP_REQUIRES(ctx, !keys_.packed_name.empty(),
                absl::InvalidArgumentError("_FuseSend: packed_name is empty"));
    OP_REQUIRES(ctx, keys_.tensor_names.size() == keys_.types.size(),
                absl::InvalidArgumentError(absl::StrCat(
                    "_FuseSend: ", keys_.tensor_names.size(),
                    " tensor_names but ", keys_.types.size(), " types")));
    // Also says early what is wrong with a device's name.
    OP_REQUIRES_OK(ctx,
                   ParseFrameKey(keys_, FrameAndIter(0, 0), &root_frame_key_));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES(ctx, ctx->rendezvous() != nullptr,
                absl::InternalError(
                    absl::StrCat("_FuseSend of ", DescribeFusedKeys(keys_),
                                 ": the step has no rendezvous")));
    std::vector<Slot> slots(ctx->num_inputs());
    for (size_t i = 0; i < slots.size(); ++i) {
      slots[i].tensor = ctx->input(static_cast<int>(i));
    }
    FrameReservation reservation;
    ChooseBeside(std::min<uint64_t>(frame_version_, FrameVersion()),
                 MaxPackedTensorBytes(),
                 std::min<uint64_t>(max_frame_bytes_, MaxFrameBytes()),
                 &reservation, &slots);
    Tensor frame;
    OP_REQUIRES_OK(ctx, PackFrame(slots, &reservation, &frame));
    for (size_t i = 0; i < slots.size(); ++i) {
      if (!slots[i].beside) continue;
      Rendezvous::ParsedKey key;
      OP_REQUIRES_OK(ctx, ParseSlotKey(keys_, i, ctx->frame_iter(), &key));
      OP_REQUIRES_OK(ctx, Send(ctx, key, slots[i].tensor));
    }
    if (ctx->frame_iter() == FrameAndIter(0, 0)) {
      OP_REQUIRES_OK(ctx, Send(ctx, root_frame_key_, frame));
    } else {
      Rendezvous::ParsedKey key;
      OP_REQUIRES_OK(ctx, ParseFrameKey(keys_, ctx->frame_iter(), &key));
      OP_REQUIRES_OK(ctx, Send(ctx, key, frame));
    }
  }

 private:
  static absl::Status Send(OpKernelContext* ctx,
                           const Rendezvous::ParsedKey& key,
                           const Tensor& tensor) {
    Rendezvous::Args args;
    args.device_context = ctx->op_device_context();
    args.alloc_attrs.set_on_host(true);
    return ctx->rendezvous()->Send(key, args, tensor, /*is_dead=*/false);
  }

  FusedKeys keys_;
  int64_t frame_version_ = 0;
  int64_t max_frame_bytes_ = 0;
  Rendezvous::ParsedKey root_frame_key_;
};

REGISTER_KERNEL_BUILDER(Name("_FuseSend").Device(tensorflow::DEVICE_CPU),
                        FuseSendOp);

}  // namespace

}  // namespace tf_fuse
