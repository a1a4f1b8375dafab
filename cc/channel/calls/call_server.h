// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Answers the calls that come by one data channel.

#ifndef TF_FUSE_CC_CHANNEL_CALLS_CALL_SERVER_H_
#define TF_FUSE_CC_CHANNEL_CALLS_CALL_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "channel/calls/call_handler.h"
#include "channel/socket/connection.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

// A call with a longer request goes by gRPC.
inline constexpr uint64_t kMaxCallRequestBytes = 1 << 20;

// For the thread that reads the channel; answers come from any.
class CallServer : public std::enable_shared_from_this<CallServer> {
 public:
  explicit CallServer(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}

  // Where a request's bytes go. Errors: DataLoss for too many.
  absl::StatusOr<char*> DestinationOf(uint64_t bytes);
  // A request and its bytes have come. Errors: DataLoss for two calls of one
  // number, which closes the channel. All others are answers.
  absl::Status OnRequest(const v1::CallRequest& request, uint64_t bytes);
  void Cancel(uint64_t call);
  // The channel is closed.
  void CancelAll();

 private:
  using Options = std::shared_ptr<tensorflow::CallOptions>;

  // Errors: DataLoss, as above; ResourceExhausted.
  absl::Status Begin(uint64_t call, const Options& options);
  void Answer(uint64_t call, const absl::Status& status, AnswerBytes bytes);

  const std::shared_ptr<Connection> connection_;
  std::string request_;  // As it comes.
  absl::Mutex mu_;
  std::map<uint64_t, Options> calls_ ABSL_GUARDED_BY(mu_);
  size_t unsent_ ABSL_GUARDED_BY(mu_) = 0;  // Answers.
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_CALLS_CALL_SERVER_H_
