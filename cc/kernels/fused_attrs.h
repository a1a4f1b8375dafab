// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#ifndef TF_FUSE_CC_KERNELS_FUSED_ATTRS_H_
#define TF_FUSE_CC_KERNELS_FUSED_ATTRS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "transport/fused_keys.h"

namespace tf_fuse {

// Reads what _FuseSend and _FuseRecv have in common: the devices, and the names
// and types of the tensors and of their frame.
inline absl::Status ReadKeyAttrs(tensorflow::OpKernelConstruction* ctx,
                                 FusedKeys* keys) {
  int64_t incarnation = 0;
  absl::Status status = ctx->GetAttr("send_device", &keys->send_device);
  status.Update(ctx->GetAttr("send_device_incarnation", &incarnation));
  keys->send_device_incarnation = static_cast<uint64_t>(incarnation);
  status.Update(ctx->GetAttr("recv_device", &keys->recv_device));
  status.Update(ctx->GetAttr("tensor_names", &keys->tensor_names));
  status.Update(ctx->GetAttr("tensor_types", &keys->types));
  status.Update(ctx->GetAttr("packed_name", &keys->packed_name));
  return status;
}

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_KERNELS_FUSED_ATTRS_H_
