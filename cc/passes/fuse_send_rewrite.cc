// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_send_rewrite.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDef;

absl::StatusOr<Node*> AddFuseSend(const PartitionView& view,
                                  const FuseGroup& group,
                                  const std::string& name,
                                  const std::string& packed_name,
                                  Graph* graph) {
  const Node* first = view.node(group.receives[0]->send);
  NodeDef def;
  def.set_name(name);
  def.set_op("_FuseSend");
  def.set_device(first->requested_device());
  tensorflow::DataTypeVector types;
  std::vector<std::string> names;
  for (const Receive* receive : group.receives) {
    types.push_back(receive->dtype);
    names.push_back(receive->tensor_name);
    def.add_input(view.node(receive->send)->def().input(0));
  }
  AddNodeAttr("tensor_types", types, &def);
  AddNodeAttr("tensor_names", names, &def);
  AddNodeAttr("packed_name", packed_name, &def);
  AddNodeAttr("frame_version", static_cast<int64_t>(group.readable.version),
              &def);
  AddNodeAttr("max_frame_bytes", static_cast<int64_t>(group.readable.max_bytes),
              &def);
  AddNodeAttr("send_device", group.send_device, &def);
  AddNodeAttr("send_device_incarnation",
              group.receives[0]->send_device_incarnation, &def);
  AddNodeAttr("recv_device", group.recv_device, &def);
  absl::Status status;
  Node* fused = graph->AddNode(def, &status);
  if (!status.ok()) return status;
  if (first->has_assigned_device_name()) {
    fused->set_assigned_device_name(first->assigned_device_name());
  }
  return fused;
}

void ReplaceSends(const PartitionView& view, const FuseGroup& group,
                  Node* fused, Graph* graph) {
  for (size_t i = 0; i < group.receives.size(); ++i) {
    Node* send = view.node(group.receives[i]->send);
    // A copy: the edges change under the loop.
    const std::vector<const Edge*> in(send->in_edges().begin(),
                                      send->in_edges().end());
    for (const Edge* edge : in) {
      if (!edge->IsControlEdge()) {
        graph->AddEdge(edge->src(), edge->src_output(), fused,
                       static_cast<int>(i));
      } else if (edge->src()->IsOp()) {
        graph->AddControlEdge(edge->src(), fused);
      }
    }
    const std::vector<const Edge*> out(send->out_edges().begin(),
                                       send->out_edges().end());
    for (const Edge* edge : out) {
      if (edge->dst()->IsOp()) graph->AddControlEdge(fused, edge->dst());
    }
    graph->RemoveNode(send);
  }
  graph->AddControlEdge(fused, graph->sink_node());
}

}  // namespace tf_fuse
