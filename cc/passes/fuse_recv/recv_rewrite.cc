// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv/recv_rewrite.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "passes/acknowledgements/acknowledgements.h"
#include "passes/view/frame_aliasing.h"
#include "passes/view/partitioner_names.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDef;

const char kSkipReasonAttr[] = "_tf_fuse_skip";

namespace {

NodeDef BuildFusedNode(const PartitionView& view, const FuseGroup& group,
                       const std::string& name) {
  const Node* first = view.node(group.receives[0]->node);
  tensorflow::DataTypeVector types;
  std::vector<std::string> tensor_names;
  std::vector<bool> copy_out;
  bool any_copy = false;
  for (const Receive* receive : group.receives) {
    types.push_back(receive->dtype);
    tensor_names.push_back(receive->tensor_name);
    copy_out.push_back(
        NeedsOwnMemory(*view.node(receive->node), !group.frame.empty()));
    any_copy = any_copy || copy_out.back();
  }
  if (!any_copy) copy_out.clear();
  const int num_alive = static_cast<int>(
      std::count(group.may_be_dead.begin(), group.may_be_dead.end(), true));
  NodeDef def;
  def.set_name(name);
  def.set_op(group.on_host ? "_HostFuseRecv" : "_FuseRecv");
  def.set_device(first->requested_device());
  AddNodeAttr("tensor_types", types, &def);
  AddNodeAttr("tensor_names", tensor_names, &def);
  AddNodeAttr("send_device", group.send_device, &def);
  AddNodeAttr("send_device_incarnation",
              group.receives[0]->send_device_incarnation, &def);
  AddNodeAttr("recv_device", group.recv_device, &def);
  AddNodeAttr("client_terminated", false, &def);
  AddNodeAttr("copy_out", copy_out, &def);
  AddNodeAttr("may_be_dead",
              num_alive > 0 ? group.may_be_dead : std::vector<bool>(), &def);
  AddNodeAttr("num_alive", num_alive, &def);
  AddNodeAttr("dynamic", group.dynamic, &def);
  AddNodeAttr("joint_sends", group.joint_sends, &def);
  return def;
}

// A Switch that hands output `output` of the fused node on, by its own output
// 1, if output `alive` says that it is live. The executor lets only a _Recv or
// a Switch leave an output empty.
absl::StatusOr<Node*> AddSwitch(Graph* graph, const Receive& receive,
                                Node* fused, int output, int alive) {
  NodeDef def;
  def.set_name(absl::StrCat(fused->name(), "/alive_", output));
  def.set_op("Switch");
  def.set_device(fused->requested_device());
  def.add_input(absl::StrCat(fused->name(), ":", output));
  def.add_input(absl::StrCat(fused->name(), ":", alive));
  AddNodeAttr("T", receive.dtype, &def);
  absl::Status status;
  Node* node = graph->AddNode(def, &status);
  if (!status.ok()) return status;
  node->set_assigned_device_name(fused->assigned_device_name());
  graph->AddEdge(fused, output, node, 0);
  graph->AddEdge(fused, alive, node, 1);
  return node;
}

// Control edges come from the fused node even if the value is dead: a _Recv of
// a dead value has itself run.
void MoveEdges(Graph* graph, Node* recv, Node* fused, Node* source,
               int output) {
  // A copy: the edges change under the loop.
  const std::vector<const Edge*> in(recv->in_edges().begin(),
                                    recv->in_edges().end());
  for (const Edge* edge : in) {
    if (edge->src()->IsOp()) graph->AddControlEdge(edge->src(), fused);
  }
  const std::vector<const Edge*> out(recv->out_edges().begin(),
                                     recv->out_edges().end());
  for (const Edge* edge : out) {
    Node* dst = edge->dst();
    const int dst_input = edge->dst_input();
    const bool control = edge->IsControlEdge();
    graph->RemoveEdge(edge);
    if (!dst->IsOp()) continue;
    if (control) {
      graph->AddControlEdge(fused, dst);
    } else {
      graph->AddEdge(source, output, dst, dst_input);
    }
  }
  graph->RemoveNode(recv);
}

void FillSlot(const PartitionView& view, const FusePlan& plan,
              const Receive& receive, v1::FuseReport::Slot* slot) {
  auto estimate = plan.estimates.find(receive.node);
  if (estimate != plan.estimates.end()) {
    v1::FuseReport::Estimate* out = slot->mutable_estimate();
    if (estimate->second.bytes) out->set_bytes(*estimate->second.bytes);
    out->set_ready_us(estimate->second.ready_us);
    out->set_tail_us(estimate->second.tail_us);
  }
  slot->set_tensor_name(receive.tensor_name);
  slot->set_dtype(tensorflow::DataTypeString(receive.dtype));
  slot->set_recv_node(view.node(receive.node)->name());
  for (const Edge* edge : view.node(receive.node)->out_edges()) {
    const Node* const reader = edge->dst();
    if (edge->IsControlEdge() || !reader->IsOp()) continue;
    if (slot->consumer().empty() || reader->name() < slot->consumer()) {
      slot->set_consumer(reader->name());
    }
  }
  if (receive.send == kNoNode) {
    slot->set_sender_node(SourceOfTensorName(receive.tensor_name));
    return;
  }
  for (const PartitionView::Edge& edge : view.in_edges(receive.send)) {
    if (edge.dst_input == 0) {
      slot->set_sender_node(view.node(edge.node)->name());
    }
  }
}

void FillReceive(const PartitionView& view, const FusePlan& plan,
                 const Receive& receive, v1::FuseReport::Skip* out) {
  out->set_send_device(receive.send_device);
  out->set_recv_device(receive.recv_device);
  FillSlot(view, plan, receive, out->mutable_slot());
}

void FillReport(const PartitionView& view, const FusePlan& plan,
                const std::vector<std::string>& names, v1::FuseReport* report) {
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const FuseGroup& group = plan.groups[g];
    v1::FuseReport::Group* out = report->add_groups();
    out->set_node(names[g]);
    out->set_send_device(group.send_device);
    out->set_recv_device(group.recv_device);
    out->set_depth(group.depth);
    out->set_frame(group.frame);
    out->set_dynamic(group.dynamic);
    for (size_t i = 0; i < group.receives.size(); ++i) {
      v1::FuseReport::Slot* slot = out->add_slots();
      FillSlot(view, plan, *group.receives[i], slot);
      slot->set_may_be_dead(group.may_be_dead[i]);
    }
  }
  for (const SkippedReceive& skipped : plan.skipped) {
    v1::FuseReport::Skip* out = report->add_skips();
    out->set_reason(skipped.reason);
    FillReceive(view, plan, *skipped.receive, out);
  }
  report->set_local_receives(plan.local_receives);
}

// Takes and returns `name`, with a number appended if it is taken already.
std::string TakeName(const std::string& name, std::set<std::string>* taken) {
  std::string result = name;
  for (int i = 1; !taken->insert(result).second; ++i) {
    result = absl::StrCat(name, "_", i);
  }
  return result;
}

// What the names of the group's nodes begin with.
std::string NamePrefix(const FuseGroup& group) {
  return absl::StrCat("tf_fuse/", ShortTask(group.send_device), "_to_",
                      ShortTask(group.recv_device),
                      group.dynamic ? std::string("/dynamic")
                                    : absl::StrCat("/depth_", group.depth));
}

std::vector<std::string> NameGroups(const PartitionView& view,
                                    const FusePlan& plan) {
  std::set<std::string> nodes;
  for (NodeId id = 0; id < view.size(); ++id) {
    nodes.insert(view.node(id)->name());
  }
  std::vector<std::string> names;
  for (const FuseGroup& group : plan.groups) {
    std::string prefix = NamePrefix(group);
    // The partitioner numbers what it makes for all graphs of a session.
    if (plan.in_session && !group.dynamic) {
      absl::StrAppend(&prefix, "/", view.node(group.receives[0]->node)->name());
    }
    names.push_back(TakeName(prefix, &nodes));
  }
  return names;
}

// Replaces the receives of `group`, which is not dynamic or has one receive, by
// one node.
absl::Status AddFusedNode(const PartitionView& view, const FuseGroup& group,
                          const std::string& name,
                          const PartitionGraphs& partitions) {
  const NodeId first = group.receives[0]->node;
  Graph* graph = partitions.at(view.partition(first)).get();
  absl::Status status;
  Node* fused = graph->AddNode(BuildFusedNode(view, group, name), &status);
  if (!status.ok()) return status;
  if (view.node(first)->has_assigned_device_name()) {
    fused->set_assigned_device_name(view.node(first)->assigned_device_name());
  }
  const int slots = static_cast<int>(group.receives.size());
  int alive = slots;
  for (int i = 0; i < slots; ++i) {
    const Receive& receive = *group.receives[i];
    Node* source = fused;
    if (group.may_be_dead[i]) {
      auto added = AddSwitch(graph, receive, fused, i, alive++);
      if (!added.ok()) return added.status();
      source = *added;
    }
    MoveEdges(graph, view.node(receive.node), fused, source,
              source == fused ? i : 1);
  }
  if (fused->in_edges().empty()) {
    graph->AddControlEdge(graph->source_node(), fused);
  }
  return absl::OkStatus();
}

// The same for each receive of a dynamic group. A node's name has that of its
// _Recv in it, which no other graph of a session has.
absl::Status AddDynamicNodes(const PartitionView& view, const FuseGroup& group,
                             const std::string& prefix,
                             const PartitionGraphs& partitions) {
  for (size_t i = 0; i < group.receives.size(); ++i) {
    FuseGroup one = group;
    one.receives = {group.receives[i]};
    one.may_be_dead = {group.may_be_dead[i]};
    const std::string name =
        absl::StrCat(prefix, "/", view.node(group.receives[i]->node)->name());
    const absl::Status status = AddFusedNode(view, one, name, partitions);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Removes a _Send, and the constant that it sends if nothing else needs it.
void RemoveSend(Graph* graph, Node* send) {
  Node* constant = nullptr;
  const absl::Status status = send->input_node(0, &constant);
  graph->RemoveNode(send);
  if (!status.ok()) return;
  const auto& outputs = constant->out_edges();
  if (std::none_of(outputs.begin(), outputs.end(),
                   [](const Edge* edge) { return edge->dst()->IsOp(); })) {
    graph->RemoveNode(constant);
  }
}

}  // namespace

void DropReceives(const PartitionView& view,
                  const std::vector<const Receive*>& receives,
                  const PartitionGraphs& partitions, v1::FuseReport* report) {
  for (const Receive* receive : receives) {
    FillReceive(view, FusePlan(), *receive, report->add_dropped());
  }
  for (const Receive* receive : receives) {
    Graph* const graph = partitions.at(view.partition(receive->node)).get();
    for (Node* carrier : CarriersOf(view.node(receive->node))) {
      graph->RemoveNode(carrier);
    }
    RemoveSend(partitions.at(view.partition(receive->send)).get(),
               view.node(receive->send));
  }
}

absl::Status ApplyFusePlan(const PartitionView& view, const FusePlan& plan,
                           const PartitionGraphs& partitions,
                           v1::FuseReport* report) {
  const std::vector<std::string> names = NameGroups(view, plan);
  FillReport(view, plan, names, report);
  for (const SkippedReceive& skipped : plan.skipped) {
    Node* node = view.node(skipped.receive->node);
    node->ClearAttr(kSkipReasonAttr);
    node->AddAttr(kSkipReasonAttr, skipped.reason);
  }
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const FuseGroup& group = plan.groups[g];
    const absl::Status status =
        group.dynamic ? AddDynamicNodes(view, group, names[g], partitions)
                      : AddFusedNode(view, group, names[g], partitions);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tf_fuse
