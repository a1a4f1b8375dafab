// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The registered pass of the option `fuse_lookups_combine`: sums of rows
// travel, not the rows. It changes devices before the graph is cut; servers may
// lack the plugin.

#include <vector>

#include "passes/fuse_recv/options.h"
#include "passes/lookups/combine_plan.h"
#include "passes/lookups/combine_rewrite.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/public/session_options.h"

namespace tf_fuse {

namespace {

class CombineLookupsPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr ||
        options.session_options == nullptr || !options.is_function_graph ||
        !ParseFuseOptions(options.session_options->config)
             .fuse_lookups_combine) {
      return absl::OkStatus();
    }
    const std::vector<MovedOperation> plan = PlanCombiners(**options.graph);
    VLOG(1) << "tf_fuse: " << plan.size()
            << " operations run beside their lookups";
    return ApplyCombiners(plan, options.graph->get());
  }
};

// Grappler has run, and devices are assigned. Before the passes that change
// what rows travel, and how.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 80,
    CombineLookupsPass);

}  // namespace

}  // namespace tf_fuse
