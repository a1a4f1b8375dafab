// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Lists the servers of this process that answer requests for frames, so that
// data channels find them.

#ifndef TF_FUSE_CC_CHANNEL_FRAMES_FRAME_SOURCE_H_
#define TF_FUSE_CC_CHANNEL_FRAMES_FRAME_SOURCE_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace tf_fuse {

// An answer to a request for a frame: bytes, or an error.
using FrameDone =
    std::function<void(const absl::Status&, const tensorflow::Tensor& frame)>;

class FrameSource {
 public:
  virtual ~FrameSource() = default;

  // Calls `done` once, perhaps on this thread. `options`, by which the request
  // is cancelled, and `request` live until then.
  virtual void AnswerFrameRequest(tensorflow::CallOptions* options,
                                  const tensorflow::RecvTensorRequest* request,
                                  FrameDone done) = 0;

  // Returns the token by which `source` is found until it is unregistered; 0
  // where the system has no random numbers.
  static uint64_t Register(FrameSource* source);
  static void Unregister(uint64_t token);
  // Null for others. Who got the token from a source may use the source: a
  // server that has answered lives as long as the process.
  static FrameSource* Find(uint64_t token);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_FRAMES_FRAME_SOURCE_H_
