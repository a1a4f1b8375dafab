// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/lookups/unique_rewrite.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tf_fuse {

using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

namespace {

class Rewriter {
 public:
  Rewriter(const UniqueIds& planned, Graph* graph)
      : planned_(planned), graph_(graph) {}

  absl::Status Run() {
    NodeBuilder builder = NewNode(planned_.ids, "unique", "TfFuse>UniqueIds");
    builder.Input(planned_.ids.node, planned_.ids.output);
    absl::Status status = Add(&builder, &unique_);
    if (!status.ok()) return status;
    for (const RowsOfIds& rows : planned_.found) {
      status = AddAfter(rows, "placed", "TfFuse>PlaceRows");
      if (!status.ok()) return status;
    }
    for (const RowsOfIds& rows : planned_.sums) {
      status = AddAfter(rows, "sums", "TfFuse>SumRows");
      if (!status.ok()) return status;
    }
    return Redirect(planned_.uses, unique_);
  }

 private:
  NodeBuilder NewNode(const NodeOutput& of, const char* suffix,
                      const char* op) {
    return NodeBuilder(
        graph_->NewName(absl::StrCat(of.node->name(), "/", suffix)), op,
        graph_->op_registry());
  }

  absl::Status Add(NodeBuilder* builder, Node** node) {
    const absl::Status status =
        builder->Device(planned_.device).Finalize(graph_, node);
    if (status.ok()) (*node)->set_assigned_device_name(planned_.device);
    return status;
  }

  absl::Status AddAfter(const RowsOfIds& rows, const char* suffix,
                        const char* op) {
    NodeBuilder builder = NewNode(rows.rows, suffix, op);
    builder.Input(rows.rows.node, rows.rows.output)
        .Input(unique_, 1)
        .Input(rows.ids.node, rows.ids.output);
    Node* node = nullptr;
    const absl::Status status = Add(&builder, &node);
    return status.ok() ? Redirect(rows.uses, node) : status;
  }

  absl::Status Redirect(const std::vector<NodeInput>& uses, Node* node) {
    for (const NodeInput& use : uses) {
      const absl::Status status =
          graph_->UpdateEdge(node, 0, use.node, use.input);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const UniqueIds& planned_;
  Graph* const graph_;
  Node* unique_ = nullptr;
};

}  // namespace

absl::Status ApplyUniqueIds(const std::vector<UniqueIds>& plan, Graph* graph) {
  for (const UniqueIds& planned : plan) {
    const absl::Status status = Rewriter(planned, graph).Run();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tf_fuse
