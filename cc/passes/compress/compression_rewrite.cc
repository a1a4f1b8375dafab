// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/compress/compression_rewrite.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tf_fuse {

using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

namespace {

absl::Status AddOn(const std::string& device, NodeBuilder& builder,
                   Graph* graph, Node** node) {
  const absl::Status status = builder.Device(device).Finalize(graph, node);
  if (status.ok()) (*node)->set_assigned_device_name(device);
  return status;
}

}  // namespace

absl::Status ApplyCompression(const std::vector<CompressedTensor>& plan,
                              Graph* graph) {
  for (const CompressedTensor& tensor : plan) {
    const bool feeds_back = !tensor.feedback_key.empty();
    NodeBuilder narrow(
        graph->NewName(absl::StrCat(tensor.source->name(), "/bfloat16")),
        feeds_back ? "TfFuse>RoundWithFeedback" : "Cast", graph->op_registry());
    narrow.Input(tensor.source, tensor.output);
    if (feeds_back) {
      narrow.Attr("key", tensor.feedback_key);
    } else {
      narrow.Attr("DstT", tensorflow::DT_BFLOAT16);
    }
    Node* narrowed = nullptr;
    absl::Status status = AddOn(tensor.source_device, narrow, graph, &narrowed);
    if (!status.ok()) return status;
    NodeBuilder widen(
        graph->NewName(absl::StrCat(tensor.source->name(), "/float32")), "Cast",
        graph->op_registry());
    widen.Input(narrowed, 0).Attr("DstT", tensorflow::DT_FLOAT);
    Node* widened = nullptr;
    status = AddOn(tensor.device, widen, graph, &widened);
    if (!status.ok()) return status;
    for (const tensorflow::Edge* edge : tensor.edges) {
      status = graph->UpdateEdge(widened, 0, edge->dst(), edge->dst_input());
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_fuse
