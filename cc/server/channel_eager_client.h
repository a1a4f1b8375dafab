// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Calls other tasks' parts of functions by data channels, and sends together
// that steps have ended.

#ifndef TF_FUSE_CC_SERVER_CHANNEL_EAGER_CLIENT_H_
#define TF_FUSE_CC_SERVER_CHANNEL_EAGER_CLIENT_H_

#include <memory>

#include "tensorflow/core/distributed_runtime/eager/eager_client.h"

namespace tf_fuse {

// Returns a cache whose clients are those of `cache`, but that to a task with a
// data channel
// * RunComponentFunction goes by the channel;
// * a function does not wait for the answer when it tells the task that a step
//   has ended, and such messages are sent together, some milliseconds later.
std::unique_ptr<tensorflow::eager::EagerClientCache> WithChannels(
    std::unique_ptr<tensorflow::eager::EagerClientCache> cache);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_SERVER_CHANNEL_EAGER_CLIENT_H_
