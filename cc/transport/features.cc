// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/features.h"

#include <utility>

#include "frame/frame.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "transport/limits.h"

namespace tf_fuse {

using tensorflow::Tensor;

Features OwnFeatures() {
  if (FrameVersion() == frame::kFirstVersion) return {};
  static_assert(kLimitOfFrameBytes <= UINT32_MAX);
  return {kFeaturePackedSends, FrameVersion(),
          static_cast<uint32_t>(MaxFrameBytes())};
}

std::vector<Slot> ToSlots(const Features& features) {
  if (features.bits == 0) return {};
  Tensor tensor(tensorflow::DT_UINT32, tensorflow::TensorShape({3}));
  tensor.vec<uint32_t>()(0) = features.bits;
  tensor.vec<uint32_t>()(1) = features.frame_version;
  tensor.vec<uint32_t>()(2) = features.max_frame_bytes;
  std::vector<Slot> slots(1);
  slots[0].tensor = std::move(tensor);
  return slots;
}

Features FeaturesOfAnswer(const Tensor& frame) {
  std::vector<Slot> slots;
  const absl::Status status =
      UnpackFrame(frame, {tensorflow::DT_UINT32}, /*copy_out=*/{}, &slots);
  if (!status.ok() || slots[0].is_dead || slots[0].beside ||
      slots[0].tensor.NumElements() < 3) {
    return {};
  }
  const auto values = slots[0].tensor.flat<uint32_t>();
  return {values(0), values(1), values(2)};
}

}  // namespace tf_fuse
