// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Makes tensors travel as bfloat16, as a plan says.

#ifndef TF_FUSE_CC_PASSES_COMPRESS_COMPRESSION_REWRITE_H_
#define TF_FUSE_CC_PASSES_COMPRESS_COMPRESSION_REWRITE_H_

#include <vector>

#include "absl/status/status.h"
#include "passes/compress/compression_plan.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// Before      source -> (another task) users
// After       source -> Cast to bfloat16 -> (another task) Cast to float ->
// users
//             For a dense gradient, TfFuse>RoundWithFeedback is the first one.
// Only the edges of the plan change. On an error the graph is not to be used.
absl::Status ApplyCompression(const std::vector<CompressedTensor>& plan,
                              tensorflow::Graph* graph);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_COMPRESS_COMPRESSION_REWRITE_H_
