// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/sessions/write_stamps.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "passes/fuse_recv/options.h"
#include "passes/fuse_recv/pipeline.h"
#include "passes/sessions/receive_stamp.h"
#include "passes/sessions/session_partitioner.h"
#include "passes/view/liveness.h"
#include "passes/view/partitioner_names.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/public/session_options.h"

namespace tf_fuse {

using tensorflow::Graph;
using tensorflow::Node;

namespace {

// A large constant is copied by nobody who does not need its value.
void DropConstants(Graph* graph) {
  constexpr size_t kKeptBytes = 1024;
  for (Node* node : graph->op_nodes()) {
    if (!node->IsConstant()) continue;
    const tensorflow::AttrValue* value = node->attrs().Find("value");
    if (value == nullptr || value->ByteSizeLong() <= kKeptBytes) continue;
    tensorflow::TensorProto zeros;  // Of the same shape.
    zeros.set_dtype(value->tensor().dtype());
    *zeros.mutable_tensor_shape() = value->tensor().tensor_shape();
    node->ClearAttr("value");
    node->AddAttr("value", zeros);
  }
}

using Stamps = std::map<std::string, v1::ReceiveStamp>;  // By node.

class StampCollector {
 public:
  explicit StampCollector(const PartitionView& view)
      : view_(view), uses_(view) {
    if (!view.topological_order().empty()) liveness_.emplace(view);
  }

  void Add(const Receive& receive, v1::ReceiveStamp::Input decision) {
    decision.set_source(SourceOfTensorName(receive.tensor_name));
    decision.set_live(liveness_.has_value() &&
                      !liveness_->MayBeDead(receive.node));
    for (const ReceiveUse& use : uses_.Find(receive, decision.source())) {
      decision.set_index(use.input);
      *stamps_[view_.node(use.node)->name()].add_inputs() = decision;
    }
  }

  const Stamps& stamps() const { return stamps_; }

 private:
  const PartitionView& view_;
  const ReceiveUses uses_;
  std::optional<Liveness> liveness_;  // None of a graph with a cycle.
  Stamps stamps_;
};

Stamps CollectStamps(const PartitionView& view, const FusePlan& plan) {
  StampCollector collector(view);
  int number = 0;
  for (const FuseGroup& group : plan.groups) {
    ++number;
    for (size_t i = 0; i < group.receives.size(); ++i) {
      v1::ReceiveStamp::Input decision;
      if (group.dynamic) {
        decision.set_dynamic(true);
      } else {
        decision.set_group(number);
        decision.set_depth(group.depth);
      }
      decision.set_may_be_dead(group.may_be_dead[i]);
      collector.Add(*group.receives[i], std::move(decision));
    }
  }
  for (const SkippedReceive& skipped : plan.skipped) {
    // A worker sees by itself what is fed and fetched.
    if (skipped.receive->client_terminated) continue;
    v1::ReceiveStamp::Input decision;
    decision.set_reason(skipped.reason);
    collector.Add(*skipped.receive, std::move(decision));
  }
  return collector.stamps();
}

}  // namespace

absl::Status StampSessionGraph(const tensorflow::ConfigProto& config,
                               const AnalysisOptions& options, Graph* graph) {
  ColocateWithInputs(graph);
  auto copy = std::make_unique<Graph>(graph->flib_def());
  copy->Copy(*graph);
  DropConstants(copy.get());
  auto parts = PartitionByTask(
      config.graph_options().enable_bfloat16_sendrecv(), copy.get());
  copy.reset();
  if (!parts.ok()) return parts.status();
  auto graphs = ToGraphs(*parts);
  parts->clear();
  if (!graphs.ok()) return graphs.status();
  auto view = PartitionView::Build(*graphs);
  if (!view.ok()) return view.status();
  const FusePlan plan = PlanAndVerify(*view, options);
  const Stamps stamps = CollectStamps(*view, plan);
  // By name: nodes that were made for the copy alone are not found here.
  for (Node* node : graph->op_nodes()) {
    auto it = stamps.find(node->name());
    if (it == stamps.end()) continue;
    v1::ReceiveStamp stamp = it->second;
    stamp.set_version(kStampVersion);
    stamp.set_fuse_operations(options.fuse_operations);
    node->AddAttr(kStampAttr, stamp.SerializeAsString());
  }
  return absl::OkStatus();
}

void ClearStamps(Graph* graph) {
  for (Node* node : graph->op_nodes()) {
    if (HasStamp(*node)) node->ClearAttr(kStampAttr);
  }
}

namespace {

class SessionStampPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || options.is_function_graph) {
      return absl::OkStatus();
    }
    Graph* graph = options.graph->get();
    ClearStamps(graph);
    if (options.session_options == nullptr) return absl::OkStatus();
    const tensorflow::ConfigProto& config = options.session_options->config;
    const FuseOptions fuse_options = ParseFuseOptions(config);
    if (!fuse_options.do_fuse_recv) return absl::OkStatus();
    const absl::Status status = Stamp(config, fuse_options, graph);
    if (!status.ok()) {
      LOG(WARNING) << "tf_fuse: left the receives of a session's graph of "
                   << graph->num_op_nodes() << " nodes alone: " << status;
      Metrics::Get()->AddSkipped("unreadable_graph", 1);
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Stamp(const tensorflow::ConfigProto& config,
                            const FuseOptions& fuse_options, Graph* graph) {
    auto tasks = TasksOf(*graph);
    if (!tasks.ok()) return tasks.status();
    if (tasks->size() < 2) return absl::OkStatus();
    // It makes receives wait for others in an order that only the partitioner
    // knows.
    if (config.graph_options().enable_recv_scheduling()) {
      return absl::FailedPreconditionError(
          "graph_options.enable_recv_scheduling orders receives by itself");
    }
    return StampSessionGraph(config, ChooseAnalysis(fuse_options), graph);
  }
};

// After all others, which may still change the graph.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 1000,
    SessionStampPass);

}  // namespace

}  // namespace tf_fuse
