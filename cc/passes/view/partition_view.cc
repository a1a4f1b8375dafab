// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/partition_view.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "passes/view/placed_nodes.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_fuse {

using tensorflow::Graph;
using tensorflow::Node;

namespace {

bool IsSendOp(const Node& node) {
  return node.type_string() == "_Send" || node.type_string() == "_HostSend";
}

bool IsRecvOp(const Node& node) {
  return node.type_string() == "_Recv" || node.type_string() == "_HostRecv";
}

// What makes a Send and a Recv a pair.
absl::StatusOr<std::string> PairKey(const Node& node, Receive* receive) {
  const tensorflow::AttrSlice attrs = node.attrs();
  absl::Status status =
      GetNodeAttr(attrs, "send_device", &receive->send_device);
  status.Update(GetNodeAttr(attrs, "recv_device", &receive->recv_device));
  status.Update(GetNodeAttr(attrs, "tensor_name", &receive->tensor_name));
  status.Update(GetNodeAttr(attrs, "send_device_incarnation",
                            &receive->send_device_incarnation));
  status.Update(
      GetNodeAttr(attrs, "client_terminated", &receive->client_terminated));
  if (!status.ok()) return status;
  return absl::StrCat(receive->send_device, ";",
                      receive->send_device_incarnation, ";",
                      receive->recv_device, ";", receive->tensor_name);
}

}  // namespace

std::string ShortTask(const std::string& device) {
  tensorflow::DeviceNameUtils::ParsedName parsed;
  if (!tensorflow::DeviceNameUtils::ParseFullName(device, &parsed)) return "x";
  return absl::StrCat(parsed.job, "_", parsed.task);
}

std::string TaskOfDevice(const std::string& device) {
  std::string task;
  std::string rest;
  if (!tensorflow::DeviceNameUtils::SplitDeviceName(device, &task, &rest)) {
    return device;
  }
  return task;
}

bool CallsFunction(const tensorflow::Node& node) {
  return std::any_of(
      node.attrs().begin(), node.attrs().end(), [](const auto& attr) {
        return attr.second.has_func() || attr.second.list().func_size() > 0;
      });
}

std::string DeviceTypeOf(const std::string& device) {
  tensorflow::DeviceNameUtils::ParsedName parsed;
  if (!tensorflow::DeviceNameUtils::ParseFullName(device, &parsed)) return "";
  return parsed.has_type ? parsed.type : "";
}

absl::StatusOr<PartitionView> PartitionView::Build(
    const PartitionGraphs& partitions) {
  PartitionView view;
  std::map<std::string, const Graph*> sorted;
  for (const auto& [name, graph] : partitions) sorted[name] = graph.get();
  for (const auto& [name, graph] : sorted) {
    view.partition_names_.push_back(name);
    absl::Status status = view.AddPartition(
        static_cast<int>(view.partition_names_.size()) - 1, *graph);
    if (!status.ok()) return status;
  }
  absl::Status status = view.JoinSendsAndReceives();
  if (!status.ok()) return status;
  view.JoinFrames();
  view.ComputeOrder();
  return view;
}

absl::Status PartitionView::AddPartition(int index, const Graph& graph) {
  std::vector<tensorflow::ControlFlowInfo> frames;
  std::vector<std::string> unreachable;
  absl::Status status =
      tensorflow::BuildControlFlowInfo(&graph, &frames, &unreachable);
  if (!status.ok()) return status;
  const std::set<std::string> unknown(unreachable.begin(), unreachable.end());
  const std::vector<Node*> nodes = NodesByName(graph);
  std::vector<NodeId> ids(graph.num_node_ids(), kNoNode);
  for (Node* node : nodes) {
    ids[node->id()] = size();
    nodes_.push_back({node,
                      index,
                      unknown.count(node->name()) > 0
                          ? kUnknownFrame
                          : frames[node->id()].frame_name,
                      {}});
  }
  for (Node* node : nodes) {
    std::vector<Edge>& in_edges = nodes_[ids[node->id()]].in_edges;
    for (const tensorflow::Edge* edge : node->in_edges()) {
      const NodeId src = ids[edge->src()->id()];
      if (src == kNoNode) continue;  // The source node of the graph.
      in_edges.push_back({src, edge->src_output(), edge->dst_input(),
                          edge->src()->IsNextIteration()});
    }
    std::sort(in_edges.begin(), in_edges.end(),
              [](const Edge& a, const Edge& b) {
                return std::tie(a.dst_input, a.node, a.src_output) <
                       std::tie(b.dst_input, b.node, b.src_output);
              });
  }
  return absl::OkStatus();
}

absl::Status PartitionView::JoinSendsAndReceives() {
  std::map<std::string, NodeId> sends;
  for (NodeId id = 0; id < size(); ++id) {
    if (!IsSendOp(*node(id))) continue;
    Receive ignored;
    auto key = PairKey(*node(id), &ignored);
    if (!key.ok()) return key.status();
    sends[*key] = id;
  }
  for (NodeId id = 0; id < size(); ++id) {
    if (!IsRecvOp(*node(id))) continue;
    Receive receive;
    receive.node = id;
    auto key = PairKey(*node(id), &receive);
    if (!key.ok()) return key.status();
    absl::Status status =
        GetNodeAttr(node(id)->attrs(), "tensor_type", &receive.dtype);
    if (!status.ok()) return status;
    receive.on_host = node(id)->type_string() == "_HostRecv" &&
                      DeviceTypeOf(receive.recv_device) != "CPU";
    receive.same_task =
        TaskOfDevice(receive.send_device) == TaskOfDevice(receive.recv_device);
    auto it = sends.find(*key);
    if (it != sends.end()) {
      receive.send = it->second;
      nodes_[id].in_edges.push_back({it->second, 0, 0, false});
    }
    receives_.push_back(std::move(receive));
  }
  return absl::OkStatus();
}

void PartitionView::JoinFrames() {
  std::map<std::string, std::vector<NodeId>> feeders;
  for (NodeId id = 0; id < size(); ++id) {
    if (node(id)->IsEnter() || node(id)->IsNextIteration()) {
      feeders[frame(id)].push_back(id);
    }
  }
  for (NodeId id = 0; id < size(); ++id) {
    if (!node(id)->IsExit()) continue;
    // BuildControlFlowInfo() counts an Exit to the frame it leaves.
    for (const NodeId feeder : feeders[frame(id)]) {
      nodes_[id].in_edges.push_back(
          {feeder, Graph::kControlSlot, Graph::kControlSlot, false});
    }
  }
}

void PartitionView::ComputeOrder() {
  std::vector<int> waiting(size(), 0);
  std::vector<std::vector<NodeId>> successors(size());
  for (NodeId id = 0; id < size(); ++id) {
    for (const Edge& edge : in_edges(id)) {
      if (edge.is_back_edge) continue;
      ++waiting[id];
      successors[edge.node].push_back(id);
    }
  }
  std::priority_queue<NodeId, std::vector<NodeId>, std::greater<NodeId>> ready;
  for (NodeId id = 0; id < size(); ++id) {
    if (waiting[id] == 0) ready.push(id);
  }
  order_.reserve(size());
  while (!ready.empty()) {
    const NodeId id = ready.top();
    ready.pop();
    order_.push_back(id);
    for (const NodeId next : successors[id]) {
      if (--waiting[next] == 0) ready.push(next);
    }
  }
  if (static_cast<int>(order_.size()) != size()) order_.clear();
}

}  // namespace tf_fuse
