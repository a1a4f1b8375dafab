// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Calls the servers of another process by one data channel, in place of gRPC:
// the thread that calls writes to the socket, and the thread that reads there
// acts on the answer. gRPC wakes several threads for each.

#ifndef TF_FUSE_CC_CHANNEL_CALLS_CALL_CLIENT_H_
#define TF_FUSE_CC_CHANNEL_CALLS_CALL_CLIENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "channel/socket/connection.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

// An answer: a uint8 vector of its bytes, in memory that tensors may have; or
// an error.
using CallDone =
    std::function<void(const absl::Status&, const tensorflow::Tensor& answer)>;

class CallClient : public std::enable_shared_from_this<CallClient> {
 public:
  explicit CallClient(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}

  // Calls the server of that token, then `done`, once, perhaps before this
  // returns: on the channel's thread, or on that which cancels. Returns the
  // call's number; 0 if the channel is closed: then nothing was sent, and
  // nothing is called. Errors: those of the answer; DataLoss for an answer of
  // more than `max_bytes`; ResourceExhausted; Unavailable.
  uint64_t Start(uint64_t server, v1::CallMethod method, std::string request,
                 uint64_t max_bytes, CallDone done);
  // Ends the call with Cancelled, unless it has ended.
  void Cancel(uint64_t call);
  // The same on another thread; one for all calls.
  void CancelElsewhere(uint64_t call);

  // The rest is for the thread that reads the channel.

  absl::StatusOr<char*> DestinationOf(const v1::CallAnswer& answer,
                                      uint64_t bytes);
  void OnAnswer(const v1::CallAnswer& answer, uint64_t bytes);
  // Fails the calls that are under way.
  void OnClosed(const absl::Status& status);

 private:
  struct Call {
    uint64_t max_bytes = 0;
    CallDone done;
    tensorflow::Tensor answer;
    absl::Status status;  // Of its memory.
  };

  // Cancels `to_cancel_` until it is empty.
  void CancelAll();
  // Null if it has ended.
  std::unique_ptr<Call> Take(uint64_t call);

  const std::shared_ptr<Connection> connection_;
  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::unique_ptr<Call>> under_way_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> to_cancel_ ABSL_GUARDED_BY(mu_);
  bool is_cancelling_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_CALLS_CALL_CLIENT_H_
