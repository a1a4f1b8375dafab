// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Finds receives whose value is the memory of a variable that the graph also
// writes.
//
// A ref variable (VariableV2) is updated in place, and what reads it, an
// Identity too, hands its memory on without a copy. A tensor that waits for the
// others of its frame is read later than one that is sent by itself. That
// changes nothing if the update comes before the read, or waits for what the
// receive brings, as in a training step. Any other update is a race already;
// then the receive is not fused.
//
//   ref variable ─┬─ Identity ─ Send ··· Recv ─ gradient ─► update: in order
//                 └──────────────────────────────────────► update: a race

#ifndef TF_FUSE_CC_PASSES_VIEW_REF_READS_H_
#define TF_FUSE_CC_PASSES_VIEW_REF_READS_H_

#include <set>

#include "passes/view/partition_view.h"

namespace tf_fuse {

// The nodes of the receives that race with an update.
// REQUIRES: view.topological_order() is not empty unless the view is.
std::set<NodeId> FindRacingRefReads(const PartitionView& view);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_VIEW_REF_READS_H_
