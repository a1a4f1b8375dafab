// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/offline_rewrite.h"

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/hosts.h"
#include "passes/fuse_recv/options.h"
#include "passes/fuse_recv/pipeline.h"
#include "passes/sessions/session_partitioner.h"
#include "passes/sessions/write_stamps.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_set.h"
#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/common_runtime/partitioning_utils.h"
#include "tensorflow/core/common_runtime/placer.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/protobuf/rewriter_config.pb.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "transport/message/tensor_frame.h"

namespace tf_fuse {

using tensorflow::Graph;
using tensorflow::GraphDef;
using tensorflow::OptimizationPassRegistry;

namespace {

// A device that exists by name only: enough to place and partition.
class NamedDevice : public tensorflow::Device {
 public:
  static std::unique_ptr<NamedDevice> Create(const std::string& name) {
    tensorflow::DeviceNameUtils::ParsedName parsed;
    tensorflow::DeviceNameUtils::ParseFullName(name, &parsed);
    tensorflow::DeviceAttributes attributes;
    attributes.set_name(name);
    attributes.set_device_type(parsed.type);
    attributes.set_incarnation(1);
    return std::unique_ptr<NamedDevice>(new NamedDevice(attributes));
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  tensorflow::Allocator* GetAllocator(
      tensorflow::AllocatorAttributes attributes) override {
    return nullptr;
  }

 private:
  explicit NamedDevice(const tensorflow::DeviceAttributes& attributes)
      : Device(nullptr, attributes) {}
};

struct NamedDevices {
  std::vector<std::unique_ptr<NamedDevice>> owned;
  tensorflow::DeviceSet set;
  // Where nodes without a device run.
  tensorflow::Device* fallback = nullptr;
};

// The full name of a device of a job, or "" if `device` names none.
std::string FullDeviceName(const std::string& device) {
  tensorflow::DeviceNameUtils::ParsedName parsed;
  if (device.empty() ||
      !tensorflow::DeviceNameUtils::ParseFullName(device, &parsed) ||
      !parsed.has_job) {
    return "";
  }
  if (!parsed.has_replica) parsed.replica = 0;
  if (!parsed.has_task) parsed.task = 0;
  if (!parsed.has_type) parsed.type = "CPU";
  if (!parsed.has_id) parsed.id = 0;
  parsed.has_replica = parsed.has_task = parsed.has_type = parsed.has_id = true;
  return tensorflow::DeviceNameUtils::ParsedNameToString(parsed);
}

void CollectDevice(const std::string& device, std::set<std::string>* names) {
  std::string name = FullDeviceName(device);
  if (!name.empty()) names->insert(std::move(name));
}

absl::Status FindDevices(const GraphDef& graph_def,
                         const std::string& default_device,
                         NamedDevices* devices) {
  const std::string default_name = FullDeviceName(default_device);
  if (default_name.empty() && !default_device.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "default_device is '", default_device,
        "', which names no device of a job (such as /job:worker/task:0)"));
  }
  std::set<std::string> names;
  CollectDevice(default_name, &names);
  for (const auto& node : graph_def.node()) {
    CollectDevice(node.device(), &names);
  }
  for (const auto& function : graph_def.library().function()) {
    for (const auto& node : function.node_def()) {
      CollectDevice(node.device(), &names);
    }
  }
  if (names.empty()) {
    return absl::InvalidArgumentError(
        "no node of the graph names a device of a job (such as "
        "/job:ps/task:0), so there is nothing to partition");
  }
  // Every task has a CPU.
  for (const std::string& name : std::set<std::string>(names)) {
    CollectDevice(TaskOfDevice(name), &names);
  }
  for (const std::string& name : names) {
    devices->owned.push_back(NamedDevice::Create(name));
    devices->set.AddDevice(devices->owned.back().get());
    if (name == default_name) devices->fallback = devices->owned.back().get();
  }
  if (devices->fallback == nullptr) {
    devices->fallback = devices->owned.front().get();
  }
  devices->set.set_client_device(devices->fallback);
  return absl::OkStatus();
}

// As the master and the workers of a session do it.
absl::Status PartitionSessionGraph(AnalysisOptions analysis, Graph* graph,
                                   PartitionGraphs* partitions) {
  // The master does not ask the tasks; each knows by itself.
  analysis.task_blocker = nullptr;
  absl::Status status =
      StampSessionGraph(tensorflow::ConfigProto(), analysis, graph);
  if (!status.ok()) return status;
  // The master cuts a copy.
  Graph copy(graph->flib_def());
  CopyGraph(*graph, &copy);
  auto parts = PartitionByTask(/*cast_to_bfloat16=*/false, &copy);
  if (!parts.ok()) return parts.status();
  for (const auto& [task, part] : *parts) {
    auto of_task = PartitionByDevice(part);
    if (!of_task.ok()) return of_task.status();
    auto graphs = ToGraphs(*of_task);
    if (!graphs.ok()) return graphs.status();
    partitions->merge(*graphs);
  }
  return absl::OkStatus();
}

// Those that passes before the partitioning look at.
void AddOptions(const v1::RewriteRequest& request,
                tensorflow::ConfigProto* config) {
  auto* optimizer = config->mutable_graph_options()
                        ->mutable_rewrite_options()
                        ->add_custom_optimizers();
  optimizer->set_name(kOptimizerName);
  auto& parameters = *optimizer->mutable_parameter_map();
  parameters["fuse_lookups_combine"].set_b(request.fuse_lookups_combine());
  parameters["fuse_lookups_unique"].set_b(request.fuse_lookups_unique());
}

// The partitions refer to `library`, which must outlive them.
absl::Status PartitionGraphDef(
    const GraphDef& graph_def, const v1::RewriteRequest& request,
    const AnalysisOptions& analysis,
    std::unique_ptr<tensorflow::FunctionLibraryDefinition>* library,
    PartitionGraphs* partitions) {
  NamedDevices devices;
  absl::Status status =
      FindDevices(graph_def, request.default_device(), &devices);
  if (!status.ok()) return status;
  *library = std::make_unique<tensorflow::FunctionLibraryDefinition>(
      tensorflow::OpRegistry::Global(), graph_def.library());
  auto graph = std::make_unique<Graph>(**library);
  tensorflow::GraphConstructorOptions constructor;
  constructor.allow_internal_ops = true;
  constructor.add_default_attributes = true;
  status = ConvertGraphDefToGraph(constructor, graph_def, graph.get());
  if (!status.ok()) return status;

  tensorflow::SessionOptions session_options;
  AddOptions(request, &session_options.config);
  tensorflow::GraphOptimizationPassOptions options;
  options.session_options = &session_options;
  options.graph = &graph;
  options.flib_def = library->get();
  options.device_set = &devices.set;
  options.is_function_graph = !request.session();
  status = OptimizationPassRegistry::Global()->RunGrouping(
      OptimizationPassRegistry::PRE_PLACEMENT, options);
  if (!status.ok()) return status;
  tensorflow::Placer placer(graph.get(), "", library->get(), &devices.set,
                            devices.fallback, /*allow_soft_placement=*/true,
                            /*log_device_placement=*/false);
  status = placer.Run();
  if (!status.ok()) return status;
  for (const auto grouping :
       {OptimizationPassRegistry::POST_PLACEMENT,
        OptimizationPassRegistry::POST_REWRITE_FOR_EXEC}) {
    status = OptimizationPassRegistry::Global()->RunGrouping(grouping, options);
    if (!status.ok()) return status;
  }
  if (request.session()) {
    return PartitionSessionGraph(analysis, graph.get(), partitions);
  }
  return tensorflow::PartitionFunctionGraph(devices.set, std::move(graph),
                                            partitions);
}

// Each task by itself, as if it saw no other.
absl::Status FuseTaskByTask(const AnalysisOptions& options,
                            PartitionGraphs* partitions,
                            v1::FuseReport* report) {
  std::map<std::string, PartitionGraphs> by_task;
  for (auto& [device, graph] : *partitions) {
    by_task[TaskOfDevice(device)][device] = std::move(graph);
  }
  partitions->clear();
  for (auto& [task, of_task] : by_task) {
    v1::FuseReport of_this;
    const absl::Status status = FuseStampedReceives(of_task, options, &of_this);
    if (!status.ok()) return status;
    of_this.set_local_receives(of_this.local_receives() +
                               report->local_receives());
    of_this.set_partitions(of_this.partitions() + report->partitions());
    report->MergeFrom(of_this);
    partitions->merge(of_task);
  }
  return absl::OkStatus();
}

absl::Status ReadPartitions(const v1::RewriteRequest& request,
                            PartitionGraphs* partitions) {
  for (const auto& [device, bytes] : request.partitions()) {
    GraphDef graph_def;
    if (!graph_def.ParseFromString(bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the partition of ", device, " is not a GraphDef"));
    }
    auto graph = std::make_unique<Graph>(tensorflow::OpRegistry::Global());
    tensorflow::GraphConstructorOptions constructor;
    constructor.allow_internal_ops = true;
    constructor.expect_device_spec = true;
    absl::Status status =
        ConvertGraphDefToGraph(constructor, graph_def, graph.get());
    if (!status.ok()) return status;
    (*partitions)[device] = std::move(graph);
  }
  return absl::OkStatus();
}

absl::StatusOr<AnalysisOptions> ReadOptions(const v1::RewriteRequest& request) {
  AnalysisOptions options;
  if (request.grouping() == "all") {
    options.grouping = Grouping::kAll;
  } else if (request.grouping() == "any_frame") {
    options.grouping = Grouping::kAnyFrame;
  } else if (!request.grouping().empty() && request.grouping() != "depth") {
    return absl::InvalidArgumentError(
        absl::StrCat("grouping is 'depth', 'all' or 'any_frame', got '",
                     request.grouping(), "'"));
  }
  if (!request.splitting().empty() &&
      !ParseSplitting(request.splitting(), &options.splitting)) {
    return absl::InvalidArgumentError(
        absl::StrCat("splitting is 'level', 'consumer', 'cost' or 'dynamic', "
                     "got '",
                     request.splitting(), "'"));
  }
  if (request.rpc_us() > 0) options.cost_model.rpc_us = request.rpc_us();
  if (request.bytes_per_us() > 0) {
    options.cost_model.bytes_per_us = request.bytes_per_us();
  }
  for (const auto& [task, address] : request.addresses()) {
    options.hosts[task] = HostOfAddress(address);
  }
  options.fuse_may_be_dead = !request.leave_may_be_dead();
  options.fuse_gpu = request.fuse_gpu();
  options.fuse_operations = request.fuse_operations();
  if (request.max_keys_per_request() != 0) {
    options.max_keys_per_request = request.max_keys_per_request();
  }
  if (request.max_key_bytes() != 0) {
    options.max_key_bytes = request.max_key_bytes();
  }
  const std::set<std::string> plain(request.plain_tasks().begin(),
                                    request.plain_tasks().end());
  options.task_blocker = [plain](const std::string& task) {
    return plain.count(task) > 0 ? std::string(skip::kPeerPlain) : "";
  };
  return options;
}

absl::Status Rewrite(const v1::RewriteRequest& request,
                     v1::RewriteResponse* response) {
  std::unique_ptr<tensorflow::FunctionLibraryDefinition> library;
  PartitionGraphs partitions;
  const auto options = ReadOptions(request);
  absl::Status status = options.status();
  if (!status.ok()) return status;
  if (request.partitions().empty()) {
    GraphDef graph_def;
    if (!graph_def.ParseFromString(request.graph_def())) {
      return absl::InvalidArgumentError("graph_def is not a GraphDef");
    }
    status =
        PartitionGraphDef(graph_def, request, *options, &library, &partitions);
  } else {
    status = ReadPartitions(request, &partitions);
  }
  if (!status.ok()) return status;
  for (const auto& [device, graph] : partitions) {
    GraphDef before;
    graph->ToGraphDef(&before);
    (*response->mutable_before())[device] = before.SerializeAsString();
  }
  v1::FuseReport* report = response->mutable_report();
  status = request.session() ? FuseTaskByTask(*options, &partitions, report)
                             : FuseReceives(partitions, *options, report);
  if (!status.ok()) return status;
  for (const auto& [device, graph] : partitions) {
    GraphDef after;
    graph->ToGraphDef(&after);
    (*response->mutable_after())[device] = after.SerializeAsString();
  }
  return absl::OkStatus();
}

}  // namespace

std::string RewriteOffline(const std::string& serialized_request) {
  v1::RewriteRequest request;
  v1::RewriteResponse response;
  if (!request.ParseFromString(serialized_request)) {
    response.set_error("the request is not a tf_fuse.v1.RewriteRequest");
  } else {
    const absl::Status status = Rewrite(request, &response);
    if (!status.ok()) response.set_error(status.ToString());
  }
  return response.SerializeAsString();
}

}  // namespace tf_fuse
