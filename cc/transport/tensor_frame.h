// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Between TensorFlow's tensors and the frame codec.

#ifndef TF_FUSE_CC_TRANSPORT_TENSOR_FRAME_H_
#define TF_FUSE_CC_TRANSPORT_TENSOR_FRAME_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "frame/frame.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

// A value on its way from one task to another.
struct Slot {
  tensorflow::Tensor tensor;
  bool is_dead = false;
  // Packing: leave the value out of the frame, the receiver fetches it singly.
  // Unpacking: the sender left it out.
  bool beside = false;
};

// Above this size a tensor is left out of the frame and fetched by a receive of
// its own, and so are the largest ones of a frame that would grow beyond the
// other size. Both were chosen by measurement: see docs/architecture.md, "Large
// tensors".
inline constexpr uint64_t kDefaultMaxPackedTensorBytes = 1 << 20;
inline constexpr uint64_t kDefaultMaxFrameBytes = 16 << 20;
// What gRPC can carry, with some room.
inline constexpr uint64_t kLimitOfFrameBytes = 1 << 30;

// The same, or what the environment variables TF_FUSE_MAX_PACKED_TENSOR_BYTES
// and TF_FUSE_MAX_FRAME_BYTES say, read once. A value that is no positive
// number, or above the limit, is reported and ignored.
uint64_t MaxPackedTensorBytes();
uint64_t MaxFrameBytes();

// The limits the decoder enforces before it allocates anything.
inline constexpr uint32_t kMaxSlots = 1 << 20;

// Bytes of one element, or 0 if values of `dtype` cannot travel as raw bytes.
size_t RawElementBytes(uint32_t dtype);

// Packs `slots` into a new uint8 vector in host memory: one copy per payload.
// Errors: InvalidArgument for a type that is not raw and not dead or beside.
absl::Status PackFrame(const std::vector<Slot>& slots,
                       tensorflow::Tensor* frame);

// Decodes `frame`. Live slots are views that share its memory, and keep it
// alive; slot i is copied out instead where copy_out[i] (empty: none), so that
// a long-lived small tensor does not keep a large frame. A slot that carries an
// error makes the whole call fail with that error. `expected_types` gives the
// number of slots and their types. Errors: DataLoss for a bad frame.
absl::Status UnpackFrame(const tensorflow::Tensor& frame,
                         const tensorflow::DataTypeVector& expected_types,
                         const std::vector<bool>& copy_out,
                         std::vector<Slot>* slots);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_TENSOR_FRAME_H_
