// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Answers the requests for frames that come by one data channel.

#ifndef TF_FUSE_CC_CHANNEL_FRAMES_FRAME_SERVER_H_
#define TF_FUSE_CC_CHANNEL_FRAMES_FRAME_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "channel/socket/connection.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

// A longer request goes by gRPC.
inline constexpr uint64_t kMaxFrameRequestBytes = 1 << 20;

// All but the answers is called by the thread that reads the channel.
class FrameServer : public std::enable_shared_from_this<FrameServer> {
 public:
  explicit FrameServer(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}

  // Where the request's bytes go. Errors: DataLoss.
  absl::StatusOr<char*> DestinationOf(uint64_t bytes);
  // Errors: DataLoss for two calls of one number, which close the channel. All
  // others are answers.
  absl::Status OnRequest(const v1::FrameRequest& request, uint64_t bytes);
  void Cancel(uint64_t call);
  // The channel is closed: cancels what was asked for.
  void CancelAll();

 private:
  struct Call {
    tensorflow::CallOptions options;
    tensorflow::RecvTensorRequest request;
  };

  // Begins the call; with the error when there are too many.
  absl::Status Begin(uint64_t call, const std::shared_ptr<Call>& under_way);
  void Answer(uint64_t call, const absl::Status& status,
              const tensorflow::Tensor& frame);

  const std::shared_ptr<Connection> connection_;
  std::string request_;  // As it comes.
  absl::Mutex mu_;
  std::map<uint64_t, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_FRAMES_FRAME_SERVER_H_
