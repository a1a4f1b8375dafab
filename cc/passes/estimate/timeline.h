// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Estimates the bytes of each receive, when its sender has them, and how long
// the step still takes after it: the longest paths through the graph.

#ifndef TF_FUSE_CC_PASSES_ESTIMATE_TIMELINE_H_
#define TF_FUSE_CC_PASSES_ESTIMATE_TIMELINE_H_

#include <map>
#include <optional>
#include <vector>

#include "passes/estimate/cost_model.h"
#include "passes/view/partition_view.h"

namespace tf_fuse {

struct ReceiveEstimate {
  // Nothing if the graph does not say the shape.
  std::optional<double> bytes;
  double ready_us = 0;
  double tail_us = 0;
};

// Of every receive of the view, by its node. Shapes are inferred by
// TensorFlow's shape functions, across partitions; what they do not find is
// taken to be of the model's `unknown_bytes`.
std::map<NodeId, ReceiveEstimate> EstimateReceives(const PartitionView& view,
                                                   const CostModel& model);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_ESTIMATE_TIMELINE_H_
