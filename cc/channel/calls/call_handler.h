// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Lists the servers of this process that answer calls, so that data channels
// find them.

#ifndef TF_FUSE_CC_CHANNEL_CALLS_CALL_HANDLER_H_
#define TF_FUSE_CC_CHANNEL_CALLS_CALL_HANDLER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

// The bytes of an answer, in pieces that live as long as `owner`.
struct AnswerBytes {
  std::vector<absl::string_view> pieces;
  std::shared_ptr<const void> owner;
};
using AnswerDone = std::function<void(const absl::Status&, AnswerBytes)>;

class CallHandler {
 public:
  virtual ~CallHandler() = default;

  // Calls `done` once, perhaps on this thread, which reads a data channel and
  // must not block. `options`, by which the call is cancelled, lives until
  // then. Errors: InvalidArgument for a request that does not parse, or an
  // unknown method.
  virtual void Handle(v1::CallMethod method, const std::string& request,
                      tensorflow::CallOptions* options, AnswerDone done) = 0;

  // Makes `handler` known by a token that others cannot guess, not 0.
  static void Register(uint64_t token, CallHandler* handler);
  static void Unregister(uint64_t token);
  // Null for others. Whoever has a server's token may use it: a server that has
  // given it away lives as long as the process.
  static CallHandler* Find(uint64_t token);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_CALLS_CALL_HANDLER_H_
