// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Decides which operations of a worker run beside a lookup on its server, so
// that sums of rows travel, not the rows. Pure: looks at the graph, changes
// nothing.

#ifndef TF_FUSE_CC_PASSES_LOOKUPS_COMBINE_PLAN_H_
#define TF_FUSE_CC_PASSES_LOOKUPS_COMBINE_PLAN_H_

#include <string>
#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

struct MovedOperation {
  tensorflow::Node* node = nullptr;
  std::string device;
};

// Plans the operations of a graph whose nodes have devices, on CPUs; sorted by
// names. These run on a server instead of a worker:
//
// * Combiners: operations that add up rows which the server has gathered from a
//   variable (ResourceGather), with what lies between that computes by element.
//   All that the worker does with the rows must be such operations: otherwise
//   it gets the rows, and adding them up there, too, saves nothing.
// * Gradients: operations that make the gradients of these rows from those of
//   the sums, if only the server gets the result.
// * What computes numbers for them alone from what the server has.
//
// Numbers of rows and segments, weights and the like (one element for each
// looked-up id) then travel besides. Lookups whose rows are not larger than
// these are left.
std::vector<MovedOperation> PlanCombiners(const tensorflow::Graph& graph);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_LOOKUPS_COMBINE_PLAN_H_
