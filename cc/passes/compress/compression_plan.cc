// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/compress/compression_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "passes/view/partition_view.h"
#include "passes/view/placed_nodes.h"
#include "passes/view/static_ranks.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

namespace {

using Types = std::set<std::string>;

bool IsWorker(const std::string& device) {
  return absl::StartsWith(device, "/job:worker/");
}

// They hand on their first input's values.
bool HandsOn(const Node& node) {
  static const auto* const kTypes =
      new Types{"Identity", "Reshape", "Cast",  "ExpandDims",  "Squeeze",
                "Snapshot", "Switch",  "Merge", "StopGradient"};
  return kTypes->count(node.type_string()) > 0;
}

// Rows of their first input, or sums of them.
bool PicksRows(const Node& node) {
  static const auto* const kTypes =
      new Types{"GatherV2",          "StridedSlice",       "SegmentSum",
                "SegmentMean",       "UnsortedSegmentSum", "SparseSegmentSum",
                "SparseSegmentMean", "SparseSegmentSqrtN"};
  return kTypes->count(node.type_string()) > 0;
}

bool EntersOrLeavesLoop(const Node& node) {
  return node.IsEnter() || node.IsExit() || node.IsNextIteration();
}

// What the marks of a graph say.
class Marks {
 public:
  // The mark of the variable whose handle an output is; empty if there is none.
  static std::string Of(const Node* node, int output) {
    // (A graph's own circle, a loop, has no handles that change.)
    for (int steps = 0; node != nullptr && steps < 1000; ++steps) {
      if (node->IsArg()) {
        std::string mark;
        (void)tensorflow::TryGetNodeAttr(node->attrs(), kCompressAttr, &mark);
        return mark;
      }
      if (node->type_string() == "TfFuse>UnpackHandles") {
        std::vector<std::string> marks;
        (void)tensorflow::TryGetNodeAttr(node->attrs(), kCompressAttr, &marks);
        const auto at = static_cast<size_t>(output);
        return at < marks.size() ? marks[at] : "";
      }
      if (!HandsOn(*node) && !node->IsEnter()) return "";
      const Edge* edge = InputOf(*node, 0);
      if (edge == nullptr) return "";
      output = edge->src_output();
      node = edge->src();
    }
    return "";
  }
  // Of an input of a node.
  static std::string OfInput(const Node& node, int input) {
    const Edge* edge = InputOf(node, input);
    return edge == nullptr ? "" : Of(edge->src(), edge->src_output());
  }
};

bool IsCompressed(const std::string& mark) {
  return absl::StartsWith(mark, kCompressedPrefix);
}

// Whether an output is rows of a variable that is marked, on one device.
bool IsRows(const Node* node, const std::string& device) {
  for (int steps = 0; node != nullptr && steps < 1000; ++steps) {
    if (DeviceOf(*node) != device) return false;
    const std::string& type = node->type_string();
    if (type == "ResourceGather" || type == "ResourceGatherNd") {
      return node->output_type(0) == tensorflow::DT_FLOAT &&
             IsCompressed(Marks::OfInput(*node, 0));
    }
    if (!HandsOn(*node) && !PicksRows(*node)) return false;
    const Edge* edge = InputOf(*node, 0);
    if (edge == nullptr ||
        edge->src()->output_type(edge->src_output()) != tensorflow::DT_FLOAT) {
      return false;
    }
    node = edge->src();
  }
  return false;
}

// Whether a node gets whole numbers that a step computes.
bool GetsNumbersOfStep(const Node& node) {
  for (const Edge* edge : node.in_edges()) {
    if (edge->IsControlEdge()) continue;
    const tensorflow::DataType type = node.input_type(edge->dst_input());
    if (type != tensorflow::DT_INT32 && type != tensorflow::DT_INT64) continue;
    const Node* source = edge->src();
    while (HandsOn(*source) && InputOf(*source, 0) != nullptr) {
      source = InputOf(*source, 0)->src();
      if (source->IsMerge()) break;
    }
    if (!source->IsConstant() &&
        source->type_string() != "TfFuse>UpdateCount") {
      return true;
    }
  }
  return false;
}

// Updates that add to a variable, or compute with what they get.
bool IsUpdate(const std::string& type) {
  static const auto* const kTypes =
      new Types{"AssignAddVariableOp",      "AssignSubVariableOp",
                "ResourceScatterAdd",       "ResourceScatterSub",
                "ResourceScatterNdAdd",     "ResourceScatterNdSub",
                "TfFuse>ElementwiseUpdate", "TfFuse>StagedUpdate"};
  return kTypes->count(type) > 0 || absl::StartsWith(type, "ResourceApply") ||
         absl::StartsWith(type, "ResourceSparseApply");
}

// Updates that store what they get.
bool IsAssignment(const std::string& type) {
  return type == "AssignVariableOp" || type == "ResourceScatterUpdate" ||
         type == "ResourceScatterNdUpdate";
}

// Where a tensor leads on the device of its consumer.
class Uses {
 public:
  Uses(const Edge& edge, const std::string& device) : device_(device) {
    Visit(edge, /*computed=*/false);
    while (!waiting_.empty()) {
      const auto [node, computed] = waiting_.back();
      waiting_.pop_back();
      for (const Edge* out : node->out_edges()) {
        if (!out->IsControlEdge()) Visit(*out, computed);
      }
    }
  }

  bool is_left() const { return is_left_; }
  bool of_rows() const { return of_rows_; }
  const std::set<std::string>& variables() const { return variables_; }

 private:
  // Follows an edge of a value that has been computed with, or has not.
  void Visit(const Edge& edge, bool computed) {
    const Node* node = edge.dst();
    if (!node->IsOp()) return;
    if (node->IsRetval() || EntersOrLeavesLoop(*node)) is_left_ = true;
    if (DeviceOf(*node) != device_) return;
    if (!seen_.emplace(node, computed).second) return;
    of_rows_ |= GetsNumbersOfStep(*node);
    if (VisitVariable(*node, computed)) return;
    waiting_.emplace_back(node, computed || !HandsOn(*node));
  }

  // Whether the node has a variable.
  bool VisitVariable(const Node& node, bool computed) {
    bool has_variable = false;
    for (int i = 0; i < node.num_inputs(); ++i) {
      if (node.input_type(i) != tensorflow::DT_RESOURCE) continue;
      has_variable = true;
      const std::string mark = Marks::OfInput(node, i);
      if (IsCompressed(mark)) {
        variables_.insert(mark.substr(sizeof(kCompressedPrefix) - 1));
      }
      if (mark == kNotCompressed) is_left_ = true;
    }
    if (!has_variable) return false;
    const std::string& type = node.type_string();
    if (!IsUpdate(type) && !(IsAssignment(type) && computed)) is_left_ = true;
    return true;
  }

  const std::string device_;
  std::set<std::pair<const Node*, bool>> seen_;
  std::vector<std::pair<const Node*, bool>> waiting_;
  std::set<std::string> variables_;
  bool is_left_ = false;
  bool of_rows_ = false;
};

// Whether the function returns what an edge leads to, unchanged.
bool IsReturned(const Edge& edge) {
  std::vector<const Node*> waiting = {edge.dst()};
  std::set<const Node*> seen;
  while (!waiting.empty()) {
    const Node* node = waiting.back();
    waiting.pop_back();
    if (node->IsRetval()) return true;
    if (!HandsOn(*node) || !seen.insert(node).second) continue;
    for (const Edge* out : node->out_edges()) {
      if (!out->IsControlEdge()) waiting.push_back(out->dst());
    }
  }
  return false;
}

// Source, output and the consumers' device: what is decided as one.
using TensorKey = std::tuple<std::string, int, std::string>;

std::map<TensorKey, CompressedTensor> TensorsBetweenTasks(const Graph& graph) {
  std::map<TensorKey, CompressedTensor> tensors;
  for (const Edge* edge : graph.edges()) {
    if (edge->IsControlEdge()) continue;
    Node* source = edge->src();
    const Node* user = edge->dst();
    if (!source->IsOp() || !user->IsOp() ||
        source->output_type(edge->src_output()) != tensorflow::DT_FLOAT) {
      continue;
    }
    const std::string from = DeviceOf(*source);
    const std::string to = DeviceOf(*user);
    if (IsWorker(from) == IsWorker(to) || DeviceTypeOf(from) != "CPU" ||
        DeviceTypeOf(to) != "CPU") {
      continue;
    }
    CompressedTensor& tensor =
        tensors[{source->name(), edge->src_output(), to}];
    tensor.source = source;
    tensor.output = edge->src_output();
    tensor.source_device = from;
    tensor.device = to;
    tensor.edges.push_back(edge);
  }
  return tensors;
}

class CompressionPlanner {
 public:
  CompressionPlanner(const Graph& graph,
                     const std::function<bool(const std::string&)>& is_local)
      : graph_(graph), is_local_(is_local), ranks_(graph) {}

  std::vector<CompressedTensor> Plan() {
    std::vector<CompressedTensor> plan;
    for (auto& [_, tensor] : TensorsBetweenTasks(graph_)) {
      if (EntersOrLeavesLoop(*tensor.source) ||
          std::any_of(
              tensor.edges.begin(), tensor.edges.end(), [](const Edge* edge) {
                return EntersOrLeavesLoop(*edge->dst()) || IsReturned(*edge);
              })) {
        continue;
      }
      const bool planned = IsWorker(tensor.device)
                               ? IsRows(tensor.source, tensor.source_device)
                               : PlanGradient(&tensor);
      if (!planned) continue;
      std::sort(tensor.edges.begin(), tensor.edges.end(),
                [](const Edge* a, const Edge* b) {
                  return std::make_pair(a->dst()->name(), a->dst_input()) <
                         std::make_pair(b->dst()->name(), b->dst_input());
                });
      plan.push_back(std::move(tensor));
    }
    return plan;
  }

 private:
  bool PlanGradient(CompressedTensor* tensor) {
    std::set<std::string> variables;
    bool of_rows = false;
    for (const Edge* edge : tensor->edges) {
      const Uses uses(*edge, tensor->device);
      if (uses.is_left()) return false;
      variables.insert(uses.variables().begin(), uses.variables().end());
      of_rows |= uses.of_rows();
    }
    if (variables.empty()) return false;
    if (!of_rows && !is_local_(tensor->source_device)) return false;
    // (Neither a scalar nor what may be one.)
    if (ranks_.Of(*tensor->source, tensor->output).value_or(0) == 0) {
      return false;
    }
    if (!of_rows) {
      // A variable has more than one if it uses its gradient in two forms.
      const std::string& variable = *variables.begin();
      tensor->feedback_key =
          absl::StrCat(variable, "#", gradients_of_[variable]++);
    }
    return true;
  }

  const Graph& graph_;
  const std::function<bool(const std::string&)>& is_local_;
  StaticRanks ranks_;
  std::map<std::string, int> gradients_of_;
};

}  // namespace

bool HasCompressedVariable(const Graph& graph) {
  for (const Node* node : graph.op_nodes()) {
    if ((node->IsArg() || node->type_string() == "TfFuse>UnpackHandles") &&
        node->attrs().Find(kCompressAttr) != nullptr) {
      return true;
    }
  }
  return false;
}

std::vector<CompressedTensor> PlanCompression(
    const Graph& graph,
    const std::function<bool(const std::string& device)>& is_local) {
  return CompressionPlanner(graph, is_local).Plan();
}

}  // namespace tf_fuse
