// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Decides which ids of lookups travel once each, though a batch repeats them.
// Pure: looks at the graph, changes nothing.

#ifndef TF_FUSE_CC_PASSES_LOOKUPS_UNIQUE_PLAN_H_
#define TF_FUSE_CC_PASSES_LOOKUPS_UNIQUE_PLAN_H_

#include <functional>
#include <string>
#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

struct NodeOutput {
  tensorflow::Node* node = nullptr;
  int output = 0;
};

struct NodeInput {
  tensorflow::Node* node = nullptr;
  int input = 0;
};

// A tensor whose rows belong to ids, and the inputs that it goes to.
struct RowsOfIds {
  NodeOutput rows;
  NodeOutput ids;  // In the shape in which the rows follow their order.
  std::vector<NodeInput> uses;
};

// Ids that a task computes, and other tasks look up.
struct UniqueIds {
  NodeOutput ids;
  std::string device;
  std::vector<NodeInput> uses;   // By other tasks, which get each id once.
  std::vector<RowsOfIds> found;  // Rows of each id, to be put in their places.
  std::vector<RowsOfIds> sums;   // Gradients; those of equal ids to be added.
};

// Plans the lookups of a graph whose nodes have devices, on CPUs; sorted by
// names.
//
// * Rows: a task has gathered them from a variable (ResourceGather), by ids of
//   another task, and only that task uses them, unchanged.
// * Gradients: a task sends them with ids to another one, which adds them up by
//   id (passes/lookups/row_sum.h), also by what Unique has made of the ids. On
//   the way they may be negated, and multiplied or divided by a scalar. If
//   anything else is done with them there, such as squaring, sums would be
//   other numbers, and they are left.
//
// Ids that Unique has made have no equal ones, and are left. So are ids whose
// process is not this one (`is_local` of the device): it may lack the plugin.
std::vector<UniqueIds> PlanUniqueIds(
    const tensorflow::Graph& graph,
    const std::function<bool(const std::string& device)>& is_local);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_LOOKUPS_UNIQUE_PLAN_H_
