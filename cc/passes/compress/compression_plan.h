// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Decides which tensors travel as bfloat16 between a worker and a server. Pure:
// looks at the graph, changes nothing.

#ifndef TF_FUSE_CC_PASSES_COMPRESS_COMPRESSION_PLAN_H_
#define TF_FUSE_CC_PASSES_COMPRESS_COMPRESSION_PLAN_H_

#include <functional>
#include <string>
#include <vector>

#include "passes/compress/node_roles.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// An output of one task that another one is to get as bfloat16.
struct CompressedTensor {
  tensorflow::Node* source = nullptr;
  int output = 0;
  std::string source_device;
  std::string device;  // Of all consumers below.
  std::vector<const tensorflow::Edge*> edges;
  // Of a dense gradient: under which the source's process keeps what rounding
  // lost. It names the variable and the traced function, as the mark does, and
  // what becomes of the gradient; so the copies of a step in one function have
  // the same key. Empty: the process keeps nothing.
  std::string feedback_key;
};

// Plans the tensors of a graph whose nodes have devices; sorted by names.
//
// A tensor of float32 is planned if it is
// * rows: a worker gets what a server gathered from a marked variable, perhaps
//   summed by segments; or
// * a gradient: of rank 1 or more, from a worker to a server, where operations
//   lead from it to an update of a marked variable. It is the gradient of rows
//   if one of these operations gets numbers that a step computes, such as ids,
//   and dense otherwise.
// It is left if it is also assigned unchanged or returned by the function,
// perhaps moved by operations that do not compute with its elements, or leads
// to an update of a variable that the program leaves out; if it enters or
// leaves a loop, or a device is not a CPU. Rows are left too if a worker
// computes with them and stores the result in a variable that is trained
// (StoredRows has the exceptions), and a dense gradient if its
// source's process is not this one (`is_local` of the device), because that may
// lack the operation that rounds it.
std::vector<CompressedTensor> PlanCompression(
    const tensorflow::Graph& graph,
    const std::function<bool(const std::string& device)>& is_local);

// Whether a graph has a mark, so that there is something to plan.
bool HasCompressedVariable(const tensorflow::Graph& graph);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_COMPRESS_COMPRESSION_PLAN_H_
