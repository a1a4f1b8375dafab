// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Merges the arithmetic that an optimizer repeats for each variable, such as
// the bias correction of its rate: the reads that
// tf_fuse/fuse_update/rewrite/shared_reads.py marks, and what depends on them.
// TensorFlow leaves both alone, since each read may see another value, and the
// arithmetic is colocated with another variable each. So servers would run ten
// operations for each variable, and updates that wait for the same numbers
// would not become one operation.

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "passes/view/frame_aliasing.h"
#include "passes/view/placed_nodes.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

namespace {

// Of a ReadVariableOp, a bool: whether it may be merged with another read of
// its variable that waits for the same nodes.
constexpr char kSharedReadAttr[] = "_tf_fuse_shared_read";

// Of a node that computes the same as another one, its name.
constexpr char kApartAttr[] = "_tf_fuse_apart";

// Longer ones are not compared.
constexpr size_t kMostAttrBytes = 256;

bool IsSharedRead(const Node& node) {
  bool shared = false;
  return node.type_string() == "ReadVariableOp" &&
         tensorflow::TryGetNodeAttr(node.attrs(), kSharedReadAttr, &shared) &&
         shared;
}

class Merger {
 public:
  explicit Merger(Graph* graph) : graph_(graph) {}

  void Run() {
    std::vector<Node*> order;
    tensorflow::GetReversePostOrder(*graph_, &order,
                                    tensorflow::NodeComparatorName());
    for (const Node* node : order) {
      if (IsSharedRead(*node) || ReadsRate(*node)) of_rates_.insert(node);
    }
    if (of_rates_.empty()) return;
    std::unordered_map<std::string, Node*> first;
    for (Node* node : order) {
      if (!MayMerge(*node)) continue;
      std::string key = KeyOf(*node);
      if (key.empty()) continue;
      const auto [it, is_new] = first.emplace(std::move(key), node);
      if (is_new) continue;
      Node*& kept = it->second;
      if (DependsOnOwner(*kept)) {
        KeepApart(kept);
        kept = node;
      } else if (DependsOnOwner(*node)) {
        KeepApart(node);
      } else {
        Replace(node, kept);
      }
    }
  }

 private:
  bool IsOfRates(const Node& node) const { return of_rates_.count(&node) > 0; }

  bool ReadsRate(const Node& node) const {
    return std::any_of(node.in_edges().begin(), node.in_edges().end(),
                       [this](const Edge* edge) {
                         return !edge->IsControlEdge() &&
                                IsOfRates(*edge->src());
                       });
  }

  // What depends on a marked read, and the constants beside it.
  bool MayMerge(const Node& node) const {
    if (!node.IsOp() || node.IsControlFlow() || node.num_outputs() == 0) {
      return false;
    }
    if (IsSharedRead(node)) return true;
    const auto readers = node.out_nodes();
    const bool is_constant =
        node.IsConstant() &&
        std::any_of(readers.begin(), readers.end(),
                    [this](const Node* reader) { return IsOfRates(*reader); });
    return (is_constant || IsOfRates(node)) && !node.op_def().is_stateful() &&
           std::none_of(node.input_types().begin(), node.input_types().end(),
                        tensorflow::IsRefType);
  }

  // Equal for nodes that compute the same from the same; empty: not known.
  static std::string KeyOf(const Node& node) {
    std::string key = absl::StrCat(node.type_string(), "\n", DeviceOf(node));
    std::vector<std::pair<std::string, std::string>> attrs;
    for (const auto& [name, value] : node.attrs()) {
      if (name == tensorflow::kColocationAttrName) continue;
      if (value.ByteSizeLong() > kMostAttrBytes) return "";
      attrs.emplace_back(name, value.SerializeAsString());
    }
    std::sort(attrs.begin(), attrs.end());
    for (const auto& [name, value] : attrs) {
      absl::StrAppend(&key, "\n", name, "=", value);
    }
    std::vector<std::pair<int, std::string>> inputs;
    for (const Edge* edge : node.in_edges()) {
      inputs.emplace_back(
          edge->dst_input(),
          absl::StrCat(edge->src()->id(), ":", edge->src_output()));
    }
    std::sort(inputs.begin(), inputs.end());
    for (const auto& [index, source] : inputs) {
      absl::StrAppend(&key, "\n", index, "<", source);
    }
    return key;
  }

  // TensorFlow would merge nodes whose inputs have become the same.
  void KeepApart(Node* node) { node->AddAttr(kApartAttr, node->name()); }

  void Replace(Node* node, Node* by) {
    const std::vector<const Edge*> edges(node->out_edges().begin(),
                                         node->out_edges().end());
    for (const Edge* edge : edges) {
      Node* const reader = edge->dst();
      const int output = edge->src_output(), input = edge->dst_input();
      graph_->RemoveEdge(edge);
      if (input == Graph::kControlSlot) {
        graph_->AddControlEdge(by, reader);
      } else {
        graph_->AddEdge(by, output, reader, input);
      }
    }
    graph_->RemoveNode(node);
  }

  Graph* const graph_;
  absl::flat_hash_set<const Node*> of_rates_;
};

class MergeRatesPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph != nullptr && *options.graph != nullptr) {
      Merger(options.graph->get()).Run();
    }
    return absl::OkStatus();
  }
};

// Grappler has run: what it makes of a computation depends on how many others
// read the same. Devices are assigned, and the graph is not cut yet, so a
// number that several operations of a server need is sent there once.
REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 70,
    MergeRatesPass);

}  // namespace

}  // namespace tf_fuse
