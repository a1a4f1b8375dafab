// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tells other tasks that steps have ended: many steps by one message.

#ifndef TF_FUSE_CC_SERVER_ENDED_STEPS_H_
#define TF_FUSE_CC_SERVER_ENDED_STEPS_H_

#include <cstdint>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/distributed_runtime/eager/eager_client.h"
#include "tensorflow/core/platform/refcount.h"
#include "tensorflow/core/protobuf/eager_service.pb.h"

namespace tf_fuse {

class EndedSteps {
 public:
  static EndedSteps* Get();

  // Sends the items of `request` to `client` some milliseconds later, with
  // others for it. Nobody waits for the answer: of a step that has ended
  // nothing is left to fail, and a task that has gone shows by its next call.
  void Add(tensorflow::eager::EagerClient* client,
           const tensorflow::eager::EnqueueRequest& request);

 private:
  struct Message {
    tensorflow::core::RefCountPtr<tensorflow::eager::EagerClient> client;
    tensorflow::eager::EnqueueRequest request;
  };
  // By client and context.
  using Messages =
      std::map<std::pair<tensorflow::eager::EagerClient*, uint64_t>, Message>;

  EndedSteps();
  void Run();

  absl::Mutex mu_;
  Messages messages_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_SERVER_ENDED_STEPS_H_
