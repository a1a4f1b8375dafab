// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The registered pass of the option `compress`: rows and gradients of marked
// variables travel as bfloat16. It changes types of tensors before the graph is
// cut, so whatever sends and receives, fused or not, here or in a task without
// the plugin, sends and receives half the bytes.

#include <string>
#include <vector>

#include "passes/compress/compression_plan.h"
#include "passes/compress/compression_rewrite.h"
#include "tensorflow/core/common_runtime/device_set.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

namespace {

class CompressPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr ||
        options.device_set == nullptr ||
        !HasCompressedVariable(**options.graph)) {
      return absl::OkStatus();
    }
    const auto is_local = [&options](const std::string& device) {
      const tensorflow::Device* found =
          options.device_set->FindDeviceByName(device);
      return found != nullptr && found->IsLocal();
    };
    const std::vector<CompressedTensor> plan =
        PlanCompression(**options.graph, is_local);
    VLOG(1) << "tf_fuse: " << plan.size() << " tensors travel as bfloat16";
    return ApplyCompression(plan, options.graph->get());
  }
};

// Last before the graph is cut: Grappler has run, and devices are assigned.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 100,
    CompressPass);

}  // namespace

}  // namespace tf_fuse
