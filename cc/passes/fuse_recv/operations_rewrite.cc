// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv/operations_rewrite.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"
#include "transport/message/joint_send.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::GraphDef;
using tensorflow::Node;
using tensorflow::NodeDef;

namespace {

using Output = std::pair<Node*, int>;  // A node and the number of its output.

// The group's node in the making: numbers what goes in and what comes out.
class Builder {
 public:
  Builder(Graph* graph, const std::vector<Node*>& members)
      : graph_(graph),
        members_(members),
        is_member_(members.begin(), members.end()) {}

  // The name ends with a hash of what the group does: a session keeps kernels
  // by the names of their nodes, also for other graphs that it runs.
  absl::StatusOr<Node*> Build(const std::string& name) {
    GraphDef body;
    for (Node* member : members_) AddToBody(member, body.add_node());
    for (Node* member : members_) FindResults(member);
    NodeDef def;
    def.set_op("TfFuse>OperationGroup");
    def.set_device(members_[0]->requested_device());
    tensorflow::DataTypeVector input_types, result_types;
    for (const auto& [node, output] : inputs_) {
      input_types.push_back(node->output_type(output));
      // A session makes the kernel of this definition; edges do not change it.
      def.add_input(absl::StrCat(node->name(), ":", output));
    }
    std::vector<std::string> results;
    for (const auto& [node, output] : results_) {
      result_types.push_back(node->output_type(output));
      results.push_back(absl::StrCat(node->name(), ":", output));
    }
    AddNodeAttr("Tinputs", input_types, &def);
    AddNodeAttr("Tresults", result_types, &def);
    std::string serialized;
    if (!tensorflow::SerializeToStringDeterministic(body, &serialized)) {
      return absl::InternalError(absl::StrCat("cannot serialize ", name));
    }
    AddNodeAttr("body", serialized, &def);
    AddNodeAttr("results", results, &def);
    const uint64_t hash = tensorflow::DeterministicProtoHash64(def);
    def.set_name(absl::StrCat(name, "/", absl::Hex(hash, absl::kZeroPad16)));
    absl::Status status;
    Node* group = graph_->AddNode(def, &status);
    if (!status.ok()) return status;
    if (members_[0]->has_assigned_device_name()) {
      group->set_assigned_device_name(members_[0]->assigned_device_name());
    }
    MoveEdges(group);
    return group;
  }

 private:
  // Inputs are "name:output" of a member before it, "^name" of one that it has
  // to wait for, and ":i", the group's input number i.
  void AddToBody(Node* member, NodeDef* def) {
    *def = member->def();
    def->clear_input();
    def->clear_device();
    def->mutable_attr()->erase("_class");
    std::vector<std::string> data(member->num_inputs());
    std::set<std::string> control;
    for (const Edge* edge : member->in_edges()) {
      Node* source = edge->src();
      const bool within = is_member_.count(source) > 0;
      if (edge->IsControlEdge()) {
        if (within) control.insert(absl::StrCat("^", source->name()));
      } else if (within) {
        data[edge->dst_input()] =
            absl::StrCat(source->name(), ":", edge->src_output());
      } else {
        data[edge->dst_input()] = absl::StrCat(
            ":", Number(Output(source, edge->src_output()), &inputs_));
      }
    }
    for (std::string& input : data) def->add_input(std::move(input));
    for (const std::string& input : control) def->add_input(input);
  }

  void FindResults(Node* member) {
    std::set<int> outputs;  // Edges have no order.
    for (const Edge* edge : member->out_edges()) {
      if (edge->IsControlEdge() || is_member_.count(edge->dst()) > 0) continue;
      outputs.insert(edge->src_output());
    }
    for (const int output : outputs) Number(Output(member, output), &results_);
  }

  int Number(const Output& output, std::vector<Output>* outputs) {
    auto& numbers = outputs == &inputs_ ? input_numbers_ : result_numbers_;
    const auto [it, is_new] =
        numbers.emplace(output, static_cast<int>(outputs->size()));
    if (is_new) outputs->push_back(output);
    return it->second;
  }

  void MoveEdges(Node* group) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      graph_->AddEdge(inputs_[i].first, inputs_[i].second, group,
                      static_cast<int>(i));
    }
    for (Node* member : members_) {
      for (const Edge* edge : member->in_edges()) {
        if (edge->IsControlEdge() && edge->src()->IsOp() &&
            is_member_.count(edge->src()) == 0) {
          graph_->AddControlEdge(edge->src(), group);
        }
      }
      // A copy: the edges change under the loop.
      const std::vector<const Edge*> out(member->out_edges().begin(),
                                         member->out_edges().end());
      for (const Edge* edge : out) {
        Node* dst = edge->dst();
        if (is_member_.count(dst) > 0 || !dst->IsOp()) continue;
        const int output = edge->src_output();
        const int dst_input = edge->dst_input();
        const bool control = edge->IsControlEdge();
        graph_->RemoveEdge(edge);
        if (control) {
          graph_->AddControlEdge(group, dst);
        } else {
          graph_->AddEdge(group, result_numbers_.at(Output(member, output)),
                          dst, dst_input);
        }
      }
    }
    for (Node* member : members_) graph_->RemoveNode(member);
    if (group->in_edges().empty()) {
      graph_->AddControlEdge(graph_->source_node(), group);
    }
    if (group->out_edges().empty()) {
      graph_->AddControlEdge(group, graph_->sink_node());
    }
  }

  Graph* const graph_;
  const std::vector<Node*>& members_;
  const std::set<Node*> is_member_;
  std::vector<Output> inputs_, results_;
  std::map<Output, int> input_numbers_, result_numbers_;
};

std::set<std::string> NamesIn(const Graph& graph) {
  std::set<std::string> names;
  for (const Node* node : graph.op_nodes()) names.insert(node->name());
  return names;
}

// Writes into each _Send which joint send it is a part of, and its place there.
void MarkJointSends(const PartitionView& view, const FusePlan& plan) {
  for (const FuseGroup& group : plan.groups) {
    size_t begin = 0;
    for (const int tensors : group.joint_sends) {
      for (int place = 0; place < tensors; ++place) {
        Node* send = view.node(group.receives[begin + place]->send);
        send->AddAttr(kJointSendAttr, group.receives[begin]->tensor_name);
        send->AddAttr(kJointPlaceAttr, place);
      }
      begin += tensors;
    }
  }
}

}  // namespace

absl::Status ApplyOperationGroups(const PartitionView& view,
                                  const FusePlan& plan,
                                  const PartitionGraphs& partitions,
                                  v1::FuseReport* report) {
  MarkJointSends(view, plan);
  std::map<std::string, std::set<std::string>> names;  // By partition.
  for (const OperationGroup& group : plan.operation_groups) {
    const std::string& device = view.partition(group.nodes[0]);
    Graph* graph = partitions.at(device).get();
    auto [taken, is_new] = names.try_emplace(device);
    if (is_new) taken->second = NamesIn(*graph);
    std::string name;
    for (int i = 0; name.empty() || !taken->second.insert(name).second; ++i) {
      name = absl::StrCat("tf_fuse/", ShortTask(device), "/operations_", i);
    }
    v1::FuseReport::OperationGroup* out = report->add_operation_groups();
    out->set_device(device);
    std::vector<Node*> members;
    for (const NodeId id : group.nodes) {
      Node* const member = view.node(id);
      members.push_back(member);
      ++(*out->mutable_operations())[member->type_string()];
      int place = 0;  // The others of a joint send come with the first.
      TryGetNodeAttr(member->attrs(), kJointPlaceAttr, &place);
      if (member->IsSend() && place == 0) out->set_sends(out->sends() + 1);
    }
    const auto built = Builder(graph, members).Build(name);
    if (!built.ok()) return built.status();
    out->set_node((*built)->name());
  }
  return absl::OkStatus();
}

}  // namespace tf_fuse
