// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "kernels/operation_group_body.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "transport/message/joint_send.h"

namespace tf_fuse {

using tensorflow::NodeDef;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;

namespace {

absl::Status Malformed(const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("TfFuse>OperationGroup: ", why));
}

Shortcut ShortcutOf(const NodeDef& def) {
  if (def.op() == "ResourceScatterAdd") return Shortcut::kAddRows;
  if (def.op() == "ResourceScatterSub") return Shortcut::kSubtractRows;
  int batch_dims = 0;
  if (def.op() == "ResourceGather" &&
      GetNodeAttr(def, "batch_dims", &batch_dims).ok() && batch_dims == 0) {
    return Shortcut::kGatherRows;
  }
  return Shortcut::kNone;
}

// Reads the body.
class BodyReader {
 public:
  explicit BodyReader(OpKernelConstruction* ctx) : ctx_(ctx) {}

  absl::Status Read(GroupBody* group) {
    std::string bytes;
    absl::Status status = ctx_->GetAttr("body", &bytes);
    if (!status.ok()) return status;
    tensorflow::GraphDef body;
    if (!body.ParseFromString(bytes)) return Malformed("body is not a graph");
    parents_.resize(body.node_size());
    std::iota(parents_.begin(), parents_.end(), 0);
    for (const NodeDef& def : body.node()) {
      GroupedOperation operation;
      status = Add(def, &operation);
      if (!status.ok()) return status;
      group->operations.push_back(std::move(operation));
    }
    status = FinishJointSends(*group);
    if (!status.ok()) return status;
    group->joint_sends = std::move(joint_sends_);
    std::vector<std::string> results;
    status = ctx_->GetAttr("results", &results);
    if (!status.ok()) return status;
    if (static_cast<int>(results.size()) != ctx_->num_outputs()) {
      return Malformed(absl::StrCat(results.size(), " results for ",
                                    ctx_->num_outputs(), " outputs"));
    }
    for (size_t i = 0; i < results.size(); ++i) {
      OperationSource source;
      status = Parse(results[i], &source);
      if (!status.ok()) return status;
      if (source.operation < 0) return Malformed("an input is a result");
      auto& of_operation = group->operations[source.operation].results;
      if (of_operation[source.index] >= 0) {
        return Malformed(absl::StrCat(results[i], " is twice a result"));
      }
      of_operation[source.index] = static_cast<int>(i);
    }
    std::map<int, std::vector<int>> by_root;
    for (int i = 0; i < body.node_size(); ++i) by_root[Root(i)].push_back(i);
    for (auto& [_, of_root] : by_root) {
      group->components.push_back(std::move(of_root));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Add(const NodeDef& def, GroupedOperation* operation) {
    const int number = static_cast<int>(outputs_.size());
    NodeDef plain = def;
    plain.clear_input();
    for (const std::string& input : def.input()) {
      OperationSource source;
      const bool is_control = absl::StartsWith(input, "^");
      const absl::Status status =
          is_control ? Parse(absl::StrCat(input.substr(1), ":0"), &source)
                     : Parse(input, &source);
      if (!status.ok()) return status;
      if (source.operation >= 0) {
        Join(source.operation, number);
      } else if (ctx_->input_type(source.index) == tensorflow::DT_RESOURCE) {
        // What has the same variable keeps its order.
        const auto [it, is_new] = first_with_.emplace(source.index, number);
        if (!is_new) Join(it->second, number);
      }
      if (is_control) continue;
      plain.add_input("in");
      operation->inputs.push_back(source);
    }
    if (def.op() == "_Send" && HasNodeAttr(def, kJointSendAttr)) {
      outputs_.push_back(0);
      types_.emplace_back();
      numbers_.emplace(def.name(), number);
      return AddToJointSend(def, operation);
    }
    const tensorflow::OpDef* op_def = nullptr;
    absl::Status status =
        tensorflow::OpRegistry::Global()->LookUpOpDef(def.op(), &op_def);
    if (!status.ok()) return status;
    AddDefaultsToNodeDef(*op_def, &plain);
    std::shared_ptr<const tensorflow::NodeProperties> properties;
    status = tensorflow::NodeProperties::CreateFromNodeDef(
        plain, tensorflow::OpRegistry::Global(), &properties);
    if (!status.ok()) return status;
    OpKernel* kernel = nullptr;
    auto* device = static_cast<tensorflow::DeviceBase*>(ctx_->device());
    status = tensorflow::CreateOpKernel(
        ctx_->device_type(), device,
        device->GetAllocator(tensorflow::AllocatorAttributes()),
        ctx_->function_library(), ctx_->resource_manager(), properties,
        ctx_->graph_def_version(), &kernel);
    if (!status.ok()) return status;
    operation->kernel.reset(kernel);
    if (kernel->AsAsync() != nullptr) {
      return Malformed(absl::StrCat("operation ", def.name(), " (", def.op(),
                                    ") is asynchronous"));
    }
    for (size_t i = 0; i < operation->inputs.size(); ++i) {
      const OperationSource& source = operation->inputs[i];
      const auto type = source.operation < 0
                            ? ctx_->input_type(source.index)
                            : types_[source.operation][source.index];
      if (type != kernel->input_type(static_cast<int>(i))) {
        return Malformed(absl::StrCat(
            "input ", i, " of ", def.name(), " is ", DataTypeString(type),
            ", expected ",
            DataTypeString(kernel->input_type(static_cast<int>(i)))));
      }
    }
    operation->shortcut = ShortcutOf(plain);
    operation->results.assign(kernel->num_outputs(), -1);
    outputs_.push_back(kernel->num_outputs());
    types_.push_back(kernel->output_types());
    if (!numbers_.emplace(def.name(), number).second) {
      return Malformed(absl::StrCat("two operations are named ", def.name()));
    }
    return absl::OkStatus();
  }

  absl::Status AddToJointSend(const NodeDef& def, GroupedOperation* operation) {
    JointSendKey key;
    absl::Status status = GetNodeAttr(def, kJointSendAttr, &key.tensor_name);
    status.Update(GetNodeAttr(def, kJointPlaceAttr, &operation->place));
    status.Update(GetNodeAttr(def, "send_device", &key.send_device));
    status.Update(GetNodeAttr(def, "send_device_incarnation",
                              &key.send_device_incarnation));
    status.Update(GetNodeAttr(def, "recv_device", &key.recv_device));
    if (!status.ok()) return Malformed(std::string(status.message()));
    if (operation->inputs.size() != 1) {
      return Malformed(absl::StrCat(def.name(), " sends ",
                                    operation->inputs.size(),
                                    " tensors, expected 1"));
    }
    const auto [it, is_new] = joint_send_numbers_.emplace(
        std::make_pair(key.tensor_name, key.recv_device),
        static_cast<int>(joint_sends_.size()));
    if (is_new) joint_sends_.push_back(std::move(key));
    operation->joint_send = it->second;
    ++joint_sends_[it->second].tensors;
    return absl::OkStatus();
  }

  // Each place has one operation.
  absl::Status FinishJointSends(const GroupBody& group) const {
    std::vector<std::vector<bool>> taken;
    for (const JointSendKey& key : joint_sends_) {
      taken.emplace_back(key.tensors, false);
    }
    for (const GroupedOperation& operation : group.operations) {
      if (operation.joint_send < 0) continue;
      const int place = operation.place;
      const JointSendKey& key = joint_sends_[operation.joint_send];
      if (place < 0 || place >= key.tensors ||
          taken[operation.joint_send][place]) {
        return Malformed(absl::StrCat(
            "the joint send of ", key.tensor_name, " has ", key.tensors,
            " tensors, and place ", place, " is not there or twice"));
      }
      taken[operation.joint_send][place] = true;
    }
    return absl::OkStatus();
  }

  // Of "name:output" or ":input".
  absl::Status Parse(const std::string& text, OperationSource* source) const {
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos ||
        !absl::SimpleAtoi(text.substr(colon + 1), &source->index)) {
      return Malformed(absl::StrCat("'", text, "' is not NAME:NUMBER"));
    }
    int limit = ctx_->num_inputs();
    if (colon > 0) {
      const auto it = numbers_.find(text.substr(0, colon));
      if (it == numbers_.end()) {
        return Malformed(absl::StrCat("no operation before has ", text));
      }
      source->operation = it->second;
      limit = std::max(outputs_[it->second], 1);  // (A control input: 0.)
    }
    if (source->index < 0 || source->index >= limit) {
      return Malformed(absl::StrCat("'", text, "': there are ", limit));
    }
    return absl::OkStatus();
  }

  int Root(int i) {
    while (parents_[i] != i) i = parents_[i] = parents_[parents_[i]];
    return i;
  }
  void Join(int a, int b) { parents_[Root(b)] = Root(a); }

  OpKernelConstruction* const ctx_;
  std::map<std::string, int> numbers_;
  std::vector<int> outputs_;
  std::vector<tensorflow::DataTypeVector> types_;
  // By the first tensor's name and the device that receives.
  std::map<std::pair<std::string, std::string>, int> joint_send_numbers_;
  std::vector<JointSendKey> joint_sends_;
  std::map<int, int> first_with_;  // The first operation with an input.
  std::vector<int> parents_;       // Of operations that are connected.
};

}  // namespace

absl::Status ReadOperationGroup(OpKernelConstruction* ctx, GroupBody* body) {
  return BodyReader(ctx).Read(body);
}

}  // namespace tf_fuse
