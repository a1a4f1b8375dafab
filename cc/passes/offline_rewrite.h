// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs TensorFlow's placer and partitioner, and then the fuse_recv pass, on a
// graph from a file: for `explain`, and for tests of the pass.

#ifndef TF_FUSE_CC_PASSES_OFFLINE_REWRITE_H_
#define TF_FUSE_CC_PASSES_OFFLINE_REWRITE_H_

#include <string>

namespace tf_fuse {

// Takes a serialized RewriteRequest, returns a serialized RewriteResponse; all
// errors are in its field `error`.
std::string RewriteOffline(const std::string& serialized_request);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_OFFLINE_REWRITE_H_
