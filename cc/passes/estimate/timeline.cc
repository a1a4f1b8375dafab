// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/estimate/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tensorflow/core/common_runtime/shape_refiner.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/public/version.h"

namespace tf_fuse {

using tensorflow::Node;
using tensorflow::ShapeRefiner;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

// A guess: the graph does not say the size of strings.
constexpr double kStringBytes = 16;

// Shapes of all nodes of all partitions.
class Shapes {
 public:
  explicit Shapes(const PartitionView& view) : view_(view) {
    std::map<NodeId, const Receive*> receives;
    for (const Receive& receive : view.receives()) {
      receives[receive.node] = &receive;
    }
    for (const NodeId id : view.topological_order()) {
      // A shape function that fails leaves its outputs unknown.
      if (!RefinerOf(id).AddNode(view.node(id)).ok()) continue;
      auto it = receives.find(id);
      if (it != receives.end()) CopyShapeOfSender(*it->second);
    }
  }

  // Elements of an output or input, if all dimensions are known.
  std::optional<double> Elements(NodeId id, int output) {
    InferenceContext* c = RefinerOf(id).GetContext(view_.node(id));
    if (c == nullptr || output >= c->num_outputs()) return std::nullopt;
    return Count(c, c->output(output));
  }
  std::optional<double> InputElements(NodeId id, int input) {
    InferenceContext* c = RefinerOf(id).GetContext(view_.node(id));
    if (c == nullptr || input >= c->num_inputs()) return std::nullopt;
    return Count(c, c->input(input));
  }
  // The size of one dimension of an input; -1 counts from the end.
  std::optional<double> InputDim(NodeId id, int input, int dim) {
    InferenceContext* c = RefinerOf(id).GetContext(view_.node(id));
    if (c == nullptr || input >= c->num_inputs()) return std::nullopt;
    const ShapeHandle shape = c->input(input);
    if (!c->RankKnown(shape) || c->Rank(shape) == 0) return std::nullopt;
    const auto handle = c->Dim(shape, dim);
    if (!c->ValueKnown(handle)) return std::nullopt;
    return static_cast<double>(c->Value(handle));
  }

 private:
  static std::optional<double> Count(InferenceContext* c, ShapeHandle shape) {
    if (!c->FullyDefined(shape)) return std::nullopt;
    double elements = 1;
    for (int i = 0; i < c->Rank(shape); ++i) {
      elements *= static_cast<double>(c->Value(c->Dim(shape, i)));
    }
    return elements;
  }

  // Errors leave the shape unknown.
  void CopyShapeOfSender(const Receive& receive) {
    if (receive.send == kNoNode) return;
    InferenceContext* from =
        RefinerOf(receive.send).GetContext(view_.node(receive.send));
    InferenceContext* to =
        RefinerOf(receive.node).GetContext(view_.node(receive.node));
    if (from == nullptr || to == nullptr || from->num_inputs() == 0) return;
    const ShapeHandle shape = from->input(0);
    if (!from->RankKnown(shape)) return;
    std::vector<tensorflow::shape_inference::DimensionHandle> dims;
    for (int i = 0; i < from->Rank(shape); ++i) {
      const auto dim = from->Dim(shape, i);
      dims.push_back(from->ValueKnown(dim) ? to->MakeDim(from->Value(dim))
                                           : to->UnknownDim());
    }
    (void)RefinerOf(receive.node)
        .SetShape(view_.node(receive.node), 0, to->MakeShape(dims));
  }

  // A refiner keeps constants by the numbers of their nodes, which the nodes of
  // another graph have too.
  ShapeRefiner& RefinerOf(NodeId id) {
    std::unique_ptr<ShapeRefiner>& refiner = refiners_[&view_.partition(id)];
    if (refiner == nullptr) {
      refiner = std::make_unique<ShapeRefiner>(
          TF_GRAPH_DEF_VERSION, tensorflow::OpRegistry::Global());
      // Ops of plugins need not have shape functions.
      refiner->set_require_shape_inference_fns(false);
    }
    return *refiner;
  }

  const PartitionView& view_;
  std::map<const std::string*, std::unique_ptr<ShapeRefiner>> refiners_;
};

// Costs nothing worth mentioning at any size.
bool IsFree(const Node& node) {
  static const auto* const kTypes = new std::set<std::string>{
      "Const",        "Identity",    "NoOp", "ReadVariableOp", "Reshape",
      "StopGradient", "VarHandleOp", "_Arg", "_Retval"};
  return kTypes->count(node.type_string()) > 0;
}

// Multiplications and additions, of the operations that are known for them.
double Flops(const Node& node, NodeId id, Shapes* shapes) {
  const std::string& type = node.type_string();
  const bool is_matmul = absl::StrContains(type, "MatMul");
  if (!is_matmul && !absl::StrContains(type, "Conv2D")) return 0;
  const auto a = shapes->InputElements(id, 0);
  const auto b = shapes->InputElements(id, 1);
  const auto c = shapes->Elements(id, 0);
  if (!a || !b || !c) return 0;
  // The product of [m, k] and [k, n] has 2 m k n of them.
  if (is_matmul) return 2 * std::sqrt(*a * *b * *c);
  const auto channels = shapes->InputDim(id, 1, -1);
  if (type != "Conv2D" || !channels || *channels == 0) {
    return 2 * std::sqrt(*a * *b * *c);
  }
  return 2 * *c * *b / *channels;
}

double CostOf(const PartitionView& view, NodeId id, const CostModel& model,
              Shapes* shapes) {
  const Node& node = *view.node(id);
  if (IsFree(node)) return model.op_us / 4;
  double bytes = 0;
  for (int i = 0; i < node.num_outputs(); ++i) {
    const int element =
        tensorflow::DataTypeSize(tensorflow::BaseType(node.output_type(i)));
    bytes += shapes->Elements(id, i).value_or(0) * element;
  }
  return model.op_us + Flops(node, id, shapes) / model.flops_per_us +
         bytes / model.op_bytes_per_us;
}

}  // namespace

std::map<NodeId, ReceiveEstimate> EstimateReceives(const PartitionView& view,
                                                   const CostModel& model) {
  Shapes shapes(view);
  std::map<NodeId, ReceiveEstimate> estimates;
  std::vector<double> cost(view.size());
  for (NodeId id = 0; id < view.size(); ++id) {
    cost[id] = CostOf(view, id, model, &shapes);
  }
  for (const Receive& receive : view.receives()) {
    ReceiveEstimate& estimate = estimates[receive.node];
    const auto elements = shapes.Elements(receive.node, 0);
    const int element = receive.dtype == tensorflow::DT_STRING
                            ? kStringBytes
                            : tensorflow::DataTypeSize(receive.dtype);
    if (elements) estimate.bytes = *elements * element;
    cost[receive.node] =
        receive.same_task
            ? model.op_us
            : model.rpc_us + estimate.bytes.value_or(model.unknown_bytes) /
                                 model.bytes_per_us;
  }
  const std::vector<NodeId>& order = view.topological_order();
  std::vector<double> finish(view.size(), 0);
  std::vector<double> tail(view.size(), 0);
  for (const NodeId id : order) {
    for (const PartitionView::Edge& edge : view.in_edges(id)) {
      if (!edge.is_back_edge) {
        finish[id] = std::max(finish[id], finish[edge.node]);
      }
    }
    finish[id] += cost[id];
  }
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    for (const PartitionView::Edge& edge : view.in_edges(*it)) {
      if (edge.is_back_edge) continue;
      tail[edge.node] = std::max(tail[edge.node], tail[*it] + cost[*it]);
    }
  }
  for (auto& [id, estimate] : estimates) {
    estimate.tail_us = tail[id];
    // All that a _Recv waits for is its sender.
    estimate.ready_us = finish[id] - cost[id];
  }
  return estimates;
}

}  // namespace tf_fuse
