// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/sessions/session_partitioner.h"

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/graph/graph_partition.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::GraphDef;
using tensorflow::Node;
using tensorflow::PartitionOptions;

namespace {

// Makes names as the master ("_S") and the workers ("_G") do, and skips those
// that the graph has.
PartitionOptions::NewNameFunc NewNames(const Graph& graph,
                                       const std::string& separator) {
  struct State {
    std::set<std::string> taken;
    int64_t next = 1;
  };
  auto state = std::make_shared<State>();
  for (const Node* node : graph.nodes()) state->taken.insert(node->name());
  return [state, separator](const std::string& prefix) {
    std::string name;
    do {
      name = absl::StrCat(prefix, separator, state->next++);
    } while (state->taken.count(name) > 0);
    return name;
  };
}

absl::StatusOr<PartitionDefs> Cut(PartitionOptions options, Graph* graph) {
  // What is cut here is never run, so any incarnation will do.
  options.get_incarnation = [](const std::string&) -> uint64_t { return 1; };
  options.flib_def = &graph->flib_def();
  PartitionDefs partitions;
  const absl::Status status = Partition(options, graph, &partitions);
  if (!status.ok()) return status;
  return partitions;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> TasksOf(const Graph& graph) {
  std::set<std::string> tasks;
  for (const Node* node : graph.op_nodes()) {
    const std::string& device = node->assigned_device_name();
    tensorflow::DeviceNameUtils::ParsedName parsed;
    if (!tensorflow::DeviceNameUtils::ParseFullName(device, &parsed) ||
        !parsed.has_job || !parsed.has_task) {
      return absl::InvalidArgumentError(
          absl::StrCat("node '", node->name(), "' is on '", device,
                       "', which is not a full device name (such as "
                       "/job:ps/replica:0/task:0/device:CPU:0)"));
    }
    tasks.insert(TaskOfDevice(device));
  }
  return std::vector<std::string>(tasks.begin(), tasks.end());
}

void ColocateWithInputs(Graph* graph) {
  auto follows_input = [](const Node* node) {
    return node->IsSwitch() || node->IsExit();
  };
  std::set<const Node*> placed;
  for (Node* start : graph->op_nodes()) {
    // From the first of a chain of them to the last.
    std::vector<Node*> chain;
    for (Node* node = start;
         follows_input(node) && placed.insert(node).second;) {
      chain.push_back(node);
      const Edge* edge = nullptr;
      if (!node->input_edge(0, &edge).ok()) break;
      node = edge->src();
    }
    for (auto it = chain.rbegin(); it != chain.rend(); ++it) {
      const Edge* edge = nullptr;
      if (!(*it)->input_edge(0, &edge).ok()) continue;
      (*it)->set_assigned_device_name(edge->src()->assigned_device_name());
    }
  }
}

absl::StatusOr<PartitionDefs> PartitionByTask(bool cast_to_bfloat16,
                                              Graph* graph) {
  PartitionOptions options;
  options.node_to_loc = [](const Node* node) {
    return TaskOfDevice(node->assigned_device_name());
  };
  options.new_name = NewNames(*graph, "_S");
  options.control_flow_added = false;
  options.should_cast = [cast_to_bfloat16](const Edge* edge) {
    if (edge->IsControlEdge()) return tensorflow::DT_FLOAT;
    const tensorflow::DataType dtype =
        BaseType(edge->src()->output_type(edge->src_output()));
    return cast_to_bfloat16 && dtype == tensorflow::DT_FLOAT
               ? tensorflow::DT_BFLOAT16
               : dtype;
  };
  return Cut(std::move(options), graph);
}

absl::StatusOr<PartitionDefs> PartitionByDevice(const GraphDef& part) {
  auto graphs = ToGraphs({{"", part}});
  if (!graphs.ok()) return graphs.status();
  Graph* graph = graphs->at("").get();
  PartitionOptions options;
  options.node_to_loc = [](const Node* node) {
    return node->assigned_device_name();
  };
  options.new_name = NewNames(*graph, "_G");
  options.control_flow_added = true;
  return Cut(std::move(options), graph);
}

absl::StatusOr<PartitionGraphs> ToGraphs(const PartitionDefs& partitions) {
  PartitionGraphs graphs;
  for (const auto& [name, graph_def] : partitions) {
    auto graph = std::make_unique<Graph>(tensorflow::OpRegistry::Global());
    tensorflow::GraphConstructorOptions options;
    options.allow_internal_ops = true;
    options.expect_device_spec = true;
    const absl::Status status =
        ConvertGraphDefToGraph(options, graph_def, graph.get());
    if (!status.ok()) return status;
    graphs[name] = std::move(graph);
  }
  return graphs;
}

}  // namespace tf_fuse
