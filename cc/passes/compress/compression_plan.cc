// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/compress/compression_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "passes/compress/node_roles.h"
#include "passes/compress/stored_rows.h"
#include "passes/view/partition_view.h"
#include "passes/view/placed_nodes.h"
#include "passes/view/static_ranks.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/fingerprint.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

namespace {

// Where a gradient leads on the device of its consumer.
class Uses {
 public:
  Uses(const Edge& edge, const std::string& device) : device_(device) {
    Visit(edge, /*computed=*/false);
    while (!waiting_.empty()) {
      const auto [node, computed] = waiting_.back();
      waiting_.pop_back();
      for (const Edge* out : node->out_edges()) {
        if (!out->IsControlEdge()) Visit(*out, computed);
      }
    }
  }

  bool is_left() const { return is_left_; }
  bool of_rows() const { return of_rows_; }
  const std::set<std::string>& variables() const { return variables_; }
  // What becomes of it, without names: the copies of a step in one function
  // use their gradients in the same way, and so does a function that is traced
  // again.
  const std::set<std::string>& forms() const { return forms_; }

 private:
  // Follows an edge of a value that has been computed with, or has not.
  void Visit(const Edge& edge, bool computed) {
    const Node* node = edge.dst();
    if (!node->IsOp()) return;
    if (node->IsRetval() || EntersOrLeavesLoop(*node)) is_left_ = true;
    if (DeviceOf(*node) != device_) return;
    const bool is_new = seen_.emplace(node, computed).second;
    bool has_variable = false;
    if (is_new) {
      of_rows_ |= GetsNumbersOfStep(*node);
      has_variable = VisitVariable(*node, computed);
    }
    forms_.insert(FormOf(edge));
    if (!is_new || has_variable) return;
    waiting_.emplace_back(node, computed || !Moves(*node));
  }

  // The operation that gets a value, its variables and its constants. (A fused
  // update distinguishes its inputs by their numbers; those of an operation
  // that commutes may change places.)
  static std::string FormOf(const Edge& edge) {
    const Node& node = *edge.dst();
    std::string form = node.type_string();
    bool has_variable = false;
    for (int i = 0; i < node.num_inputs(); ++i) {
      if (node.input_type(i) == tensorflow::DT_RESOURCE) {
        has_variable = true;
        absl::StrAppend(&form, ",", MarkOfInput(node, i));
        continue;
      }
      const Edge* other = InputOf(node, i);
      if (other == nullptr || !other->src()->IsConstant()) continue;
      const auto* value = other->src()->attrs().Find("value");
      if (value == nullptr) continue;
      absl::StrAppend(&form, ",",
                      tensorflow::Fingerprint64(value->SerializeAsString()));
    }
    if (has_variable) absl::StrAppend(&form, "@", edge.dst_input());
    return form;
  }

  // Whether the node has a variable.
  bool VisitVariable(const Node& node, bool computed) {
    bool has_variable = false;
    for (int i = 0; i < node.num_inputs(); ++i) {
      if (node.input_type(i) != tensorflow::DT_RESOURCE) continue;
      has_variable = true;
      const std::string mark = MarkOfInput(node, i);
      if (IsCompressed(mark)) {
        variables_.insert(mark.substr(sizeof(kCompressedPrefix) - 1));
      }
      if (mark == kNotCompressed) is_left_ = true;
    }
    if (!has_variable) return false;
    const std::string& type = node.type_string();
    if (!IsUpdate(type) && !(IsAssignment(type) && computed)) is_left_ = true;
    return true;
  }

  const std::string device_;
  std::set<std::pair<const Node*, bool>> seen_;
  std::vector<std::pair<const Node*, bool>> waiting_;
  std::set<std::string> variables_;
  std::set<std::string> forms_;
  bool is_left_ = false;
  bool of_rows_ = false;
};

// Whether the function returns what an edge leads to, only moved.
bool IsReturned(const Edge& edge) {
  std::vector<const Node*> waiting = {edge.dst()};
  std::set<const Node*> seen;
  while (!waiting.empty()) {
    const Node* node = waiting.back();
    waiting.pop_back();
    if (node->IsRetval()) return true;
    if (!Moves(*node) || !seen.insert(node).second) continue;
    for (const Edge* out : node->out_edges()) {
      if (CarriesValues(*out)) waiting.push_back(out->dst());
    }
  }
  return false;
}

// Source, output and the consumers' device: what is decided as one.
using TensorKey = std::tuple<std::string, int, std::string>;

std::map<TensorKey, CompressedTensor> TensorsBetweenTasks(const Graph& graph) {
  std::map<TensorKey, CompressedTensor> tensors;
  for (const Edge* edge : graph.edges()) {
    if (edge->IsControlEdge()) continue;
    Node* source = edge->src();
    const Node* user = edge->dst();
    if (!source->IsOp() || !user->IsOp() ||
        source->output_type(edge->src_output()) != tensorflow::DT_FLOAT) {
      continue;
    }
    const std::string from = DeviceOf(*source);
    const std::string to = DeviceOf(*user);
    if (IsWorker(from) == IsWorker(to) || DeviceTypeOf(from) != "CPU" ||
        DeviceTypeOf(to) != "CPU") {
      continue;
    }
    CompressedTensor& tensor =
        tensors[{source->name(), edge->src_output(), to}];
    tensor.source = source;
    tensor.output = edge->src_output();
    tensor.source_device = from;
    tensor.device = to;
    tensor.edges.push_back(edge);
  }
  return tensors;
}

class CompressionPlanner {
 public:
  CompressionPlanner(const Graph& graph,
                     const std::function<bool(const std::string&)>& is_local)
      : graph_(graph), is_local_(is_local), ranks_(graph) {}

  std::vector<CompressedTensor> Plan() {
    std::vector<CompressedTensor> plan;
    for (auto& [_, tensor] : TensorsBetweenTasks(graph_)) {
      if (EntersOrLeavesLoop(*tensor.source) ||
          std::any_of(
              tensor.edges.begin(), tensor.edges.end(), [](const Edge* edge) {
                return EntersOrLeavesLoop(*edge->dst()) || IsReturned(*edge);
              })) {
        continue;
      }
      const bool planned =
          IsWorker(tensor.device) ? PlanRows(tensor) : PlanGradient(&tensor);
      if (!planned) continue;
      std::sort(tensor.edges.begin(), tensor.edges.end(),
                [](const Edge* a, const Edge* b) {
                  return std::make_pair(a->dst()->name(), a->dst_input()) <
                         std::make_pair(b->dst()->name(), b->dst_input());
                });
      plan.push_back(std::move(tensor));
    }
    return plan;
  }

 private:
  bool PlanRows(const CompressedTensor& tensor) {
    if (!IsRows(tensor.source, tensor.source_device)) return false;
    if (stored_rows_ == nullptr) {
      stored_rows_ = std::make_unique<StoredRows>(graph_, &ranks_);
    }
    return std::none_of(
        tensor.edges.begin(), tensor.edges.end(),
        [this](const Edge* edge) { return stored_rows_->LeadsTo(*edge); });
  }

  bool PlanGradient(CompressedTensor* tensor) {
    std::set<std::string> variables;
    std::set<std::string> forms;
    bool of_rows = false;
    for (const Edge* edge : tensor->edges) {
      const Uses uses(*edge, tensor->device);
      if (uses.is_left()) return false;
      variables.insert(uses.variables().begin(), uses.variables().end());
      forms.insert(uses.forms().begin(), uses.forms().end());
      of_rows |= uses.of_rows();
    }
    if (variables.empty()) return false;
    if (!of_rows && !is_local_(tensor->source_device)) return false;
    // (Neither a scalar nor what may be one.)
    if (ranks_.Of(*tensor->source, tensor->output).value_or(0) == 0) {
      return false;
    }
    if (!of_rows) {
      // The copies of a step share what is lost: each reads what the one before
      // it has updated, so they round in their order. A gradient that a server
      // uses in two forms loses something else in each.
      tensor->feedback_key = absl::StrCat(
          *variables.begin(), "#",
          absl::Hex(tensorflow::Fingerprint64(absl::StrJoin(forms, ";")),
                    absl::kZeroPad16));
    }
    return true;
  }

  const Graph& graph_;
  const std::function<bool(const std::string&)>& is_local_;
  StaticRanks ranks_;
  std::unique_ptr<StoredRows> stored_rows_;  // Made when first needed.
};

}  // namespace

bool HasCompressedVariable(const Graph& graph) {
  for (const Node* node : graph.op_nodes()) {
    if ((node->IsArg() || node->type_string() == "TfFuse>UnpackHandles") &&
        node->attrs().Find(kCompressAttr) != nullptr) {
      return true;
    }
  }
  return false;
}

std::vector<CompressedTensor> PlanCompression(
    const Graph& graph,
    const std::function<bool(const std::string& device)>& is_local) {
  return CompressionPlanner(graph, is_local).Plan();
}

}  // namespace tf_fuse
