// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The receiver's side of a fused receive: one request for many tensors, and an
// RPC each for those that it leaves out.

#ifndef TF_FUSE_CC_TRANSPORT_RECEIVER_FUSED_RECV_H_
#define TF_FUSE_CC_TRANSPORT_RECEIVER_FUSED_RECV_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/control_flow.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "transport/message/receive_keys.h"
#include "transport/message/tensor_frame.h"
#include "transport/step/step_rendezvous.h"

namespace tf_fuse {

// One slot per key, in order; empty unless the status is OK. The status keeps
// the sender's code and payloads, and its message names the failing tensors.
using FusedDone =
    std::function<void(const absl::Status&, std::vector<Slot> slots)>;

// Receives all tensors of `keys` with one RPC, or one by one from a peer that
// lacks the plugin. Calls `done` exactly once, on any thread.
void RecvFused(StepRendezvous* step, std::shared_ptr<const FusedKeys> keys,
               const tensorflow::FrameAndIter& frame_iter,
               const tensorflow::Rendezvous::Args& args, FusedDone done);

// As RecvFused(), but with one RPC for each tensor.
void RecvOneByOne(StepRendezvous* step, std::shared_ptr<const FusedKeys> keys,
                  const tensorflow::FrameAndIter& frame_iter,
                  const tensorflow::Rendezvous::Args& args, FusedDone done);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_RECEIVER_FUSED_RECV_H_
