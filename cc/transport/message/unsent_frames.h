// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The memory of packed frames, from their packing until gRPC has sent them. A
// receiver that does not read its answers keeps them here.

#ifndef TF_FUSE_CC_TRANSPORT_MESSAGE_UNSENT_FRAMES_H_
#define TF_FUSE_CC_TRANSPORT_MESSAGE_UNSENT_FRAMES_H_

#include <cstdint>

#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

// A part of MaxUnsentFrameBytes(): a frame that is being laid out. What it
// holds goes to the frame's memory, or back when it is destroyed.
class FrameReservation {
 public:
  FrameReservation() = default;
  FrameReservation(const FrameReservation&) = delete;
  FrameReservation& operator=(const FrameReservation&) = delete;
  ~FrameReservation();

  // False, and nothing changes, if there would be more than the limit.
  bool Take(uint64_t bytes);

 private:
  friend bool AllocateFrame(uint64_t, FrameReservation*, tensorflow::Tensor*);
  uint64_t bytes_ = 0;
};

// Makes `frame` a uint8 vector of that many bytes (above 0), in host memory,
// which counts as unsent as long as it lives, in place of `reservation`. False
// if memory is exhausted.
bool AllocateFrame(uint64_t bytes, FrameReservation* reservation,
                   tensorflow::Tensor* frame);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_MESSAGE_UNSENT_FRAMES_H_
