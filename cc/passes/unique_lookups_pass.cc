// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The registered pass of the option `fuse_lookups_unique`: of the ids that a
// task looks up, each travels once. It changes what is sent before the graph is
// cut, so servers may lack the plugin.

#include <string>
#include <vector>

#include "passes/fuse_recv/options.h"
#include "passes/lookups/unique_plan.h"
#include "passes/lookups/unique_rewrite.h"
#include "tensorflow/core/common_runtime/device_set.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/public/session_options.h"

namespace tf_fuse {

namespace {

class UniqueLookupsPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr ||
        options.device_set == nullptr || options.session_options == nullptr ||
        !options.is_function_graph ||
        !ParseFuseOptions(options.session_options->config)
             .fuse_lookups_unique) {
      return absl::OkStatus();
    }
    const auto is_local = [&options](const std::string& device) {
      const tensorflow::Device* found =
          options.device_set->FindDeviceByName(device);
      return found != nullptr && found->IsLocal();
    };
    const std::vector<UniqueIds> plan =
        PlanUniqueIds(**options.graph, is_local);
    VLOG(1) << "tf_fuse: " << plan.size() << " lists of ids travel once each";
    return ApplyUniqueIds(plan, options.graph->get());
  }
};

// Grappler has run, and devices are assigned. Before the pass that rounds what
// travels: sums are rounded once.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 90,
    UniqueLookupsPass);

}  // namespace

}  // namespace tf_fuse
