// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What packing and unpacking of frames have to agree on.

#ifndef TF_FUSE_CC_TRANSPORT_MESSAGE_TENSOR_FRAME_LAYOUT_H_
#define TF_FUSE_CC_TRANSPORT_MESSAGE_TENSOR_FRAME_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "frame/frame.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"
#include "transport/message/tensor_frame.h"

namespace tf_fuse {

inline bool MayBeSerialized(uint32_t dtype) {
  return dtype == tensorflow::DT_RESOURCE || dtype == tensorflow::DT_VARIANT;
}

inline frame::OtherTypes TypesThatAreNotRaw() {
  frame::OtherTypes types;
  types.string_dtype = tensorflow::DT_STRING;
  types.may_be_serialized = &MayBeSerialized;
  return types;
}

// All that may stand around the payloads of a frame.
inline uint64_t BytesAroundPayloads(uint64_t slots) {
  return frame::kFixedHeaderBytes +
         slots * (frame::kSlotRecordBytes + 8 * frame::kMaxRank +
                  frame::kPayloadAlignment);
}

// A builder for tensors.
frame::FrameBuilder BuilderForSlots();
// Adds `slots`, as PackFrame() takes them, and finishes. Errors:
// InvalidArgument for a type that cannot be packed.
absl::Status LayOutFrame(const std::vector<Slot>& slots,
                         frame::FrameBuilder* builder, uint64_t* total_bytes);
// Writes the payload of a tensor of strings.
void WriteStrings(const tensorflow::Tensor& tensor, uint8_t* out);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_MESSAGE_TENSOR_FRAME_LAYOUT_H_
