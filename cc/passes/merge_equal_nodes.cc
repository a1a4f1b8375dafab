// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/merge_equal_nodes.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "passes/view/placed_nodes.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/optimizer_cse.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

const char kSharedReadAttr[] = "_tf_fuse_shared_read";

namespace {

bool HasUpdates(const Graph& graph) {
  for (const Node* node : graph.op_nodes()) {
    if (node->type_string() == "TfFuse>ElementwiseUpdate" ||
        node->type_string() == "TfFuse>StagedUpdate") {
      return true;
    }
  }
  return false;
}

bool IsSharedRead(const Node& node) {
  bool shared = false;
  return node.type_string() == "ReadVariableOp" &&
         tensorflow::TryGetNodeAttr(node.attrs(), kSharedReadAttr, &shared) &&
         shared;
}

// What a read waits for: nodes, and which output.
std::set<std::pair<int, int>> SourcesOf(const Node& node) {
  std::set<std::pair<int, int>> sources;
  for (const Edge* edge : node.in_edges()) {
    sources.insert({edge->src()->id(), edge->src_output()});
  }
  return sources;
}

void Replace(Graph* graph, Node* node, Node* by) {
  const std::vector<const Edge*> edges(node->out_edges().begin(),
                                       node->out_edges().end());
  for (const Edge* edge : edges) {
    Node* const reader = edge->dst();
    const int input = edge->dst_input();
    const bool is_control = edge->IsControlEdge();
    graph->RemoveEdge(edge);
    if (is_control) {
      graph->AddControlEdge(by, reader);
    } else {
      graph->AddEdge(by, 0, reader, input);
    }
  }
  graph->RemoveNode(node);
}

void MergeReads(Graph* graph) {
  std::map<std::set<std::pair<int, int>>, Node*> first;
  for (Node* node : NodesByName(*graph)) {
    if (!IsSharedRead(*node)) continue;
    const auto [it, is_new] = first.emplace(SourcesOf(*node), node);
    if (!is_new && it->second->output_type(0) == node->output_type(0)) {
      Replace(graph, node, it->second);
    }
  }
}

}  // namespace

void MergeEqualNodes(Graph* graph) {
  if (!HasUpdates(*graph)) return;
  MergeReads(graph);
  // (TensorFlow leaves alone what was colocated with another variable each.
  // By now all nodes have devices.)
  for (Node* node : graph->op_nodes()) {
    if (!node->op_def().is_stateful()) {
      node->ClearAttr(tensorflow::kColocationAttrName);
    }
  }
  tensorflow::OptimizeCSE(graph, nullptr);
}

}  // namespace tf_fuse
