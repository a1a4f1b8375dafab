// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Questions to other tasks, about a request or about the process.

#ifndef TF_FUSE_CC_TRANSPORT_PEERS_ASK_PEER_H_
#define TF_FUSE_CC_TRANSPORT_PEERS_ASK_PEER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

// A task that does not answer within this time is taken to have stopped.
inline constexpr int kAnswerTimeoutMs = 5000;

// Asks `task`, which `workers` lead to; `frame` is the answer. Calls `done`
// exactly once, perhaps on this thread. Errors: Internal for a task that
// `workers` do not know; DeadlineExceeded; the RPC's own.
void AskPeer(
    std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
    const std::string& task, tensorflow::Device* device,
    v1::FuseRecvTensorRequest question, int timeout_ms,
    std::function<void(const absl::Status&, const tensorflow::Tensor& frame)>
        done);

// The bytes in a frame of one uint8 vector. Errors: DataLoss for other frames.
absl::StatusOr<std::string> ReadBytesResponse(const tensorflow::Tensor& frame);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_PEERS_ASK_PEER_H_
