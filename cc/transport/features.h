// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What a task can do beyond serving and running fused receives. A task that is
// probed answers with this, so that a version that lacks something is never
// sent a graph that needs it.

#ifndef TF_FUSE_CC_TRANSPORT_FEATURES_H_
#define TF_FUSE_CC_TRANSPORT_FEATURES_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "transport/tensor_frame.h"

namespace tf_fuse {

// Runs _FuseSend, answers requests for the frames that it sends, and runs
// _FuseRecv that ask for them.
inline constexpr uint32_t kFeaturePackedSends = 1;

struct Features {
  uint32_t bits = 0;
  // The newest frames that the task reads, and how many bytes the payloads of
  // one may have.
  uint32_t frame_version = 0;
  uint32_t max_frame_bytes = 0;
};

// Of this task: none if TF_FUSE_FRAME_VERSION makes it one of the first
// version.
Features OwnFeatures();

// The answer to a probe, before it is packed.
std::vector<Slot> ToSlots(const Features& features);

// What is in the frame that answered a probe. Nothing for a frame without
// slots, as the first version answered, and for what is not understood. Newer
// versions may say more, behind what is read here.
Features FeaturesOfAnswer(const tensorflow::Tensor& frame);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_FEATURES_H_
