// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tells each update on a server in whose step it is: all workers run the same
// function, and the process that runs it, a worker, partitions the graph.

#include <memory>
#include <set>
#include <string>

#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"
#include "transport/peers/cluster.h"

namespace tf_fuse {

namespace {

class UpdateStampPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.partition_graphs == nullptr) return absl::OkStatus();
    std::string task;
    for (auto& [device, graph] : *options.partition_graphs) {
      for (tensorflow::Node* node : graph->op_nodes()) {
        if (node->type_string() != "TfFuse>ElementwiseUpdate" &&
            node->type_string() != "TfFuse>StagedUpdate") {
          continue;
        }
        if (task.empty()) {
          const std::set<std::string> tasks = LocalTasks();
          // (In a process with several tasks, it may be any of them.)
          if (tasks.size() != 1) return absl::OkStatus();
          task = *tasks.begin();
        }
        node->ClearAttr("worker");
        node->AddAttr("worker", task);
      }
    }
    return absl::OkStatus();
  }
};

// Before the fuse_recv pass, which puts updates into groups.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_PARTITIONING,
                      5, UpdateStampPass);

}  // namespace

}  // namespace tf_fuse
