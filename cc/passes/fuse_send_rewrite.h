// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The sender's half of a group that is packed by its graph.
//
// Before:                          After:
//   x ──► _Send "a"                  x ──► _FuseSend {a, b}, as "frame"
//   y ──► _Send "b"                  y ──►

#ifndef TF_FUSE_CC_PASSES_FUSE_SEND_REWRITE_H_
#define TF_FUSE_CC_PASSES_FUSE_SEND_REWRITE_H_

#include <string>

#include "absl/status/statusor.h"
#include "passes/fuse_recv_analysis.h"
#include "passes/partition_view.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// Adds the _FuseSend of `group` to the partition of its senders, without edges
// yet. Errors: those of Graph::AddNode(); nothing is added then.
absl::StatusOr<tensorflow::Node*> AddFuseSend(const PartitionView& view,
                                              const FuseGroup& group,
                                              const std::string& name,
                                              const std::string& packed_name,
                                              tensorflow::Graph* graph);

// Gives it the inputs and the control edges, in and out, of the group's _Send
// nodes, and removes those.
void ReplaceSends(const PartitionView& view, const FuseGroup& group,
                  tensorflow::Node* fused, tensorflow::Graph* graph);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_SEND_REWRITE_H_
