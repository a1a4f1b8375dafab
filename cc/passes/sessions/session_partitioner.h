// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Cuts a session's graph as TensorFlow does: the master cuts by task, and each
// worker cuts its part by device.

#ifndef TF_FUSE_CC_PASSES_SESSIONS_SESSION_PARTITIONER_H_
#define TF_FUSE_CC_PASSES_SESSIONS_SESSION_PARTITIONER_H_

#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "passes/view/partition_view.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

using PartitionDefs = std::unordered_map<std::string, tensorflow::GraphDef>;

// All tasks ("/job:ps/replica:0/task:0") that the nodes of a placed graph are
// assigned to, in sorted order. Errors: InvalidArgument for a node without a
// full device.
absl::StatusOr<std::vector<std::string>> TasksOf(
    const tensorflow::Graph& graph);

// Puts each Switch and Exit where its value comes from, as the partitioner
// does; but it visits them in an order that depends on addresses, so nobody can
// predict what it does to a Switch of a Switch. After this call, it finds them
// in place.
void ColocateWithInputs(tensorflow::Graph* graph);

// The part of each task. `graph` is changed: control flow across tasks is added
// to it. `cast_to_bfloat16` is ConfigProto's
// graph_options.enable_bfloat16_sendrecv.
absl::StatusOr<PartitionDefs> PartitionByTask(bool cast_to_bfloat16,
                                              tensorflow::Graph* graph);

// The partition of each device, made of one task's part.
absl::StatusOr<PartitionDefs> PartitionByDevice(
    const tensorflow::GraphDef& part);

absl::StatusOr<PartitionGraphs> ToGraphs(const PartitionDefs& partitions);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_SESSIONS_SESSION_PARTITIONER_H_
