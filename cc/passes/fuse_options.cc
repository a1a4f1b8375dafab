// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_options.h"

#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h"
#include "tensorflow/core/protobuf/rewriter_config.pb.h"

namespace tf_fuse {

FuseOptions ParseFuseOptions(const tensorflow::ConfigProto& config) {
  FuseOptions options;
  for (const auto& optimizer :
       config.graph_options().rewrite_options().custom_optimizers()) {
    if (optimizer.name() != kOptimizerName) continue;
    auto it = optimizer.parameter_map().find("do_fuse_recv");
    if (it != optimizer.parameter_map().end()) {
      options.do_fuse_recv = it->second.b();
    }
  }
  return options;
}

namespace {

// Grappler looks the name up, so it has to be there; it has nothing to do.
class OptionCarrier : public tensorflow::grappler::CustomGraphOptimizer {
 public:
  absl::Status Init(
      const tensorflow::RewriterConfig_CustomGraphOptimizer* config) override {
    return absl::OkStatus();
  }
  std::string name() const override { return kOptimizerName; }
  bool UsesFunctionLibrary() const override { return false; }
  absl::Status Optimize(tensorflow::grappler::Cluster* cluster,
                        const tensorflow::grappler::GrapplerItem& item,
                        tensorflow::GraphDef* optimized_graph) override {
    return absl::AbortedError(
        "nothing to do: tf_fuse works after partitioning");
  }
};

REGISTER_GRAPH_OPTIMIZER_AS(OptionCarrier, kOptimizerName);

}  // namespace

}  // namespace tf_fuse
