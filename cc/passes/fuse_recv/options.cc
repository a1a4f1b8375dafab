// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv/options.h"

#include <map>

#include "base/environment.h"
#include "base/limits.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/protobuf/rewriter_config.pb.h"
#include "transport/peers/cluster.h"

namespace tf_fuse {

FuseOptions ParseFuseOptions(const tensorflow::ConfigProto& config) {
  FuseOptions options;
  for (const auto& optimizer :
       config.graph_options().rewrite_options().custom_optimizers()) {
    if (optimizer.name() != kOptimizerName) continue;
    const auto& given = optimizer.parameter_map();
    auto it = given.find("fuse_lookups_combine");
    if (it != given.end()) options.fuse_lookups_combine = it->second.b();
    it = given.find("fuse_lookups_unique");
    if (it != given.end()) options.fuse_lookups_unique = it->second.b();
    it = given.find("do_fuse_recv");
    if (it != given.end()) options.do_fuse_recv = it->second.b();
    it = given.find("do_fuse_gpu");
    if (it != given.end()) options.do_fuse_gpu = it->second.b();
    it = given.find("fuse_operations");
    if (it != given.end()) options.fuse_operations = it->second.b();
    it = given.find("fuse_grouping");
    if (it != given.end()) options.grouping = it->second.s();
    it = given.find("fuse_rpc_us");
    if (it != given.end()) options.rpc_us = it->second.f();
    it = given.find("fuse_gigabytes_per_s");
    if (it != given.end()) options.gigabytes_per_s = it->second.f();
  }
  return options;
}

bool FusesUnstampedGraphs() {
  static const bool fuses =
      NumberFromEnvironment("TF_FUSE_DYNAMIC", 0, 1, 0) == 1;
  return fuses;
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

bool ParseSplitting(const std::string& name, Splitting* splitting) {
  static const auto* const kNames =
      new std::map<std::string, Splitting>{{"level", Splitting::kLevel},
                                           {"consumer", Splitting::kConsumer},
                                           {"cost", Splitting::kCost},
                                           {"dynamic", Splitting::kDynamic}};
  auto it = kNames->find(name);
  if (it == kNames->end()) return false;
  *splitting = it->second;
  return true;
}

bool AnalysisOptions::ShareHost(const std::string& task,
                                const std::string& other) const {
  const auto first = hosts.find(task);
  const auto second = hosts.find(other);
  return first != hosts.end() && second != hosts.end() &&
         first->second == second->second;
}

AnalysisOptions ChooseAnalysis(const FuseOptions& options) {
  AnalysisOptions analysis;
  analysis.fuse_gpu = options.do_fuse_gpu;
  analysis.fuse_operations = options.fuse_operations;
  analysis.splitting = Splitting::kCost;
  if (!options.grouping.empty() &&
      !ParseSplitting(options.grouping, &analysis.splitting)) {
    // A newer coordinator may know more.
    LOG(WARNING) << "tf_fuse: fuse_grouping is '" << options.grouping
                 << "', this task knows 'level', 'consumer', 'cost' and "
                    "'dynamic'; 'cost' is used.";
  }
  if (analysis.splitting != Splitting::kCost) return analysis;
  analysis.hosts = HostsOfTasks();
  CostModel* model = &analysis.cost_model;
  analysis.max_packed_bytes = static_cast<double>(MaxPackedTensorBytes());
  if (options.rpc_us > 0) model->rpc_us = options.rpc_us;
  if (options.gigabytes_per_s > 0) {
    model->bytes_per_us = 1000 * options.gigabytes_per_s;
  }
  return analysis;
}

}  // namespace tf_fuse
