// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Decides in the master of a session (tf.compat.v1.Session) which receives are
// fused, and stamps the decisions on nodes (receive_stamp.h). A worker of a
// session gets its own part of the graph alone; only the master has the whole.
// So each worker carries out the stamps that it finds (plan_from_stamps.h).
//
// Requires    the whole graph, pruned to its feeds and fetches and placed.
// Guarantees  as pipeline.h does; and that a run waits for no feed that
//             it did not wait for, so that Session.partial_run goes on.
// Switched    by do_fuse_recv in the session's ConfigProto.
//
// In order: a copy of the graph is cut as the master will cut it
// (session_partitioner.h); then PartitionView, PlanFusedReceives and
// DropGroupsThatCloseCycles as for functions; then the stamps.

#ifndef TF_FUSE_CC_PASSES_SESSIONS_WRITE_STAMPS_H_
#define TF_FUSE_CC_PASSES_SESSIONS_WRITE_STAMPS_H_

#include "absl/status/status.h"
#include "passes/fuse_recv/options.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace tf_fuse {

// Stamps the nodes of `graph` that use what another task sends. Changes nothing
// else but the device of a Switch or Exit (see ColocateWithInputs). Errors:
// whatever makes the graph one that cannot be cut or read; then nothing is
// stamped.
absl::Status StampSessionGraph(const tensorflow::ConfigProto& config,
                               const AnalysisOptions& options,
                               tensorflow::Graph* graph);

// Removes stamps, as from a graph that was saved with some.
void ClearStamps(tensorflow::Graph* graph);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_SESSIONS_WRITE_STAMPS_H_
