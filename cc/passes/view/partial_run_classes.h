// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Decides which receives may share a frame although they depend on different
// feeds.
//
// Session.partial_run feeds a graph bit by bit, and fetches in between; nothing
// in the graph tells it from a run that is fed at once. A fetch that did not
// wait for a feed must not come to wait for it:
//
//   x (fed) ──► a ──► fetch 1      {a, b} in one frame: fetch 1 would wait for
//   y (fed) ──► b ──► fetch 2      y, which is fed after fetch 1 has returned
//
// Let M(n) be the feeds that all ends below node n wait for: fetches, targets,
// and whatever else has no successor. What hangs on feeds F has F within M, and
// M grows along every edge. So if receives are fused only with those of the
// same M, each end waits for the feeds that it waited for, and no others. In a
// training step all ends wait for all feeds, and M is the same everywhere.

#ifndef TF_FUSE_CC_PASSES_VIEW_PARTIAL_RUN_CLASSES_H_
#define TF_FUSE_CC_PASSES_VIEW_PARTIAL_RUN_CLASSES_H_

#include <vector>

#include "passes/view/partition_view.h"

namespace tf_fuse {

// For each node the number of its M; all 0 in a graph without feeds.
// REQUIRES: view.topological_order() is not empty unless the view is.
std::vector<int> FindFeedClasses(const PartitionView& view);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_VIEW_PARTIAL_RUN_CLASSES_H_
