// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Decides which receives are fused. Pure: looks at the graph, changes nothing.

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_RECV_ANALYSIS_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_RECV_ANALYSIS_H_

#include <cstddef>
#include <vector>

#include "passes/fuse_recv/options.h"
#include "passes/fuse_recv/plan.h"
#include "passes/view/partition_view.h"

namespace tf_fuse {

// What starts a receive in each iteration of its loop: its control inputs,
// sorted. Empty outside of loops, where every node runs once.
std::vector<NodeId> FindTriggers(const PartitionView& view,
                                 const Receive& receive);

// Divides `items` into as few parts of at most `most` as there can be, about
// equally large.
template <typename T>
std::vector<std::vector<T>> SplitEvenly(const std::vector<T>& items,
                                        size_t most) {
  std::vector<std::vector<T>> parts;
  const size_t count = (items.size() + most - 1) / most;
  for (size_t i = 0; i < count; ++i) {
    parts.emplace_back(items.begin() + i * items.size() / count,
                       items.begin() + (i + 1) * items.size() / count);
  }
  return parts;
}

// The plan refers to receives of `view`, which must outlive it. A receive is
// fused with others of the same send device, receive device, depth, blocking
// ancestors and loop.
//
// The depth of a receive is 1 + the largest depth among the receives above
// its sender. Two receives of equal depth cannot wait for one another, and
// contracting all groups at once leaves the graph acyclic, because depth
// grows along every path through a receive.
//
// Blocking ancestors are operations that may wait for something outside of the
// graph, such as another step (QueueDequeue). Receives that do not hang on the
// same ones are kept apart: one must not wait for what only another waits for.
// The Merge of a loop stands for what it waits for in iterations before. Nor do
// they come to wait for other feeds than before: see partial_run_classes.h.
//
// Receives in a loop are fused with those that the same operations start in
// each iteration; TensorFlow's partitioner starts all receives of a loop on
// one device by one Merge. So the fused one runs in the iterations in which
// they would run, and waits for tensors of its own iteration alone. What an
// iteration waits for beside its own is earlier ones: no two iterations wait
// for each other (docs/architecture/fuse_recv.md).
//
// A receive that is alone at its depth joins a deeper group of the same devices
// if whatever uses it waits for a receive of that depth anyway, and for what
// the group hangs on: nothing is held up. Depths stay in order by this, since
// every receive below its consumers is deeper still. With kCost several
// receives join, too, and operations that only compute may be held up, if the
// step is not: what they give has no effect before the group's depth.
//
// Where a sender above a receive is not visible, neither is its depth. Such
// receives of the same two devices, and frame of a loop, are fused dynamically:
// none of them waits for another, so depth and blocking ancestors do not
// matter. Whether they are live is not known either.
FusePlan PlanFusedReceives(const PartitionView& view,
                           const AnalysisOptions& options);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_RECV_ANALYSIS_H_
