// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs scripts of the fuzzer of requests: steps, requests, tensors,
// cancellations and receives, in any order.

#ifndef TF_FUSE_CC_TESTING_REQUESTS_FUZZ_SCRIPT_H_
#define TF_FUSE_CC_TESTING_REQUESTS_FUZZ_SCRIPT_H_

#include "frame/frame_testing.h"

namespace tf_fuse {
namespace testing {

// Requests for all tensors; and mostly requests by parts, with their rests.
void RunPlainScript(frame::testing::Script* script);
void RunPartsScript(frame::testing::Script* script);

}  // namespace testing
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TESTING_REQUESTS_FUZZ_SCRIPT_H_
