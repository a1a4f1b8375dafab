// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Sends what no task waits for some milliseconds later, so that many items
// travel in one message.

#ifndef TF_FUSE_CC_SERVER_DELAYED_MESSAGES_H_
#define TF_FUSE_CC_SERVER_DELAYED_MESSAGES_H_

#include <cstdint>
#include <map>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/distributed_runtime/eager/eager_client.h"
#include "tensorflow/core/platform/refcount.h"
#include "tensorflow/core/protobuf/eager_service.pb.h"

namespace tf_fuse {

class DelayedMessages {
 public:
  static DelayedMessages* Get();

  // Sends the items of `request` to `client` some milliseconds later, with
  // others for it; if `in_order`, by the stream of the context, so after all
  // that was sent there before. Nobody waits for the answer: what the items let
  // go of has ended, and a task that has gone shows by its next call.
  void Add(tensorflow::eager::EagerClient* client,
           const tensorflow::eager::EnqueueRequest& request, bool in_order);

 private:
  // Client, context, and whether in order.
  using Key = std::tuple<tensorflow::eager::EagerClient*, uint64_t, bool>;
  struct Message {
    tensorflow::core::RefCountPtr<tensorflow::eager::EagerClient> client;
    tensorflow::eager::EnqueueRequest request;
  };
  using Messages = std::map<Key, Message>;

  DelayedMessages();
  void Run();

  absl::Mutex mu_;
  Messages messages_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_SERVER_DELAYED_MESSAGES_H_
