// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/compress/compression_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "passes/view/partition_view.h"
#include "passes/view/placed_nodes.h"
#include "passes/view/static_ranks.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/fingerprint.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

namespace {

using Types = std::set<std::string>;

bool IsWorker(const std::string& device) {
  return absl::StartsWith(device, "/job:worker/");
}

// They hand on their first input's values.
bool HandsOn(const Node& node) {
  static const auto* const kTypes =
      new Types{"Identity", "Reshape", "Cast",  "ExpandDims",  "Squeeze",
                "Snapshot", "Switch",  "Merge", "StopGradient"};
  return kTypes->count(node.type_string()) > 0;
}

// They compute with no element: each one that they return is one of an input,
// or a constant. (Cast, which hands on, is among them.) What gets a rounded
// value from them gets it as if it had got their input.
bool Moves(const Node& node) {
  static const auto* const kTypes = new Types{"BroadcastTo",
                                              "CheckNumerics",
                                              "Concat",
                                              "ConcatV2",
                                              "DynamicPartition",
                                              "DynamicStitch",
                                              "EnsureShape",
                                              "Enter",
                                              "Exit",
                                              "GatherNd",
                                              "GatherV2",
                                              "IdentityN",
                                              "MirrorPad",
                                              "NextIteration",
                                              "Pack",
                                              "Pad",
                                              "PadV2",
                                              "ParallelConcat",
                                              "ParallelDynamicStitch",
                                              "PreventGradient",
                                              "ReverseSequence",
                                              "ReverseV2",
                                              "Roll",
                                              "Select",
                                              "SelectV2",
                                              "Slice",
                                              "Split",
                                              "SplitV",
                                              "StridedSlice",
                                              "TensorListConcatV2",
                                              "TensorListFromTensor",
                                              "TensorListGetItem",
                                              "TensorListPushBack",
                                              "TensorListSetItem",
                                              "TensorListStack",
                                              "TensorScatterUpdate",
                                              "Tile",
                                              "Transpose",
                                              "Unpack"};
  return HandsOn(node) || kTypes->count(node.type_string()) > 0;
}

// Whether an edge can carry values of rows. (Variants hold lists of tensors;
// integers that depend on rows, such as those of an argmax, are not rounded.)
bool CarriesValues(const Edge& edge) {
  if (edge.IsControlEdge()) return false;
  const tensorflow::DataType type = edge.src()->output_type(edge.src_output());
  return tensorflow::DataTypeIsFloating(type) || type == tensorflow::DT_VARIANT;
}

// Rows of their first input, or sums of them.
bool PicksRows(const Node& node) {
  static const auto* const kTypes =
      new Types{"GatherV2",          "StridedSlice",       "SegmentSum",
                "SegmentMean",       "UnsortedSegmentSum", "SparseSegmentSum",
                "SparseSegmentMean", "SparseSegmentSqrtN"};
  return kTypes->count(node.type_string()) > 0;
}

bool EntersOrLeavesLoop(const Node& node) {
  return node.IsEnter() || node.IsExit() || node.IsNextIteration();
}

// Which output of the graph's arguments a handle is; nullptr if it is unknown.
using Handle = std::pair<const Node*, int>;

Handle HandleOf(const Node& node, int input) {
  const Edge* edge = InputOf(node, input);
  // (A graph's own circle, a loop, has no handles that change.)
  for (int steps = 0; edge != nullptr && steps < 1000; ++steps) {
    const Node* source = edge->src();
    if (source->IsArg() || source->type_string() == "TfFuse>UnpackHandles") {
      return {source, edge->src_output()};
    }
    if (!HandsOn(*source) && !source->IsEnter()) break;
    edge = InputOf(*source, 0);
  }
  return {nullptr, 0};
}

// The mark of the variable whose handle an input is; empty if it has none.
std::string MarkOfInput(const Node& node, int input) {
  const auto [source, output] = HandleOf(node, input);
  if (source == nullptr) return "";
  if (source->IsArg()) {
    std::string mark;
    (void)tensorflow::TryGetNodeAttr(source->attrs(), kCompressAttr, &mark);
    return mark;
  }
  std::vector<std::string> marks;
  (void)tensorflow::TryGetNodeAttr(source->attrs(), kCompressAttr, &marks);
  const auto at = static_cast<size_t>(output);
  return at < marks.size() ? marks[at] : "";
}

bool IsCompressed(const std::string& mark) {
  return absl::StartsWith(mark, kCompressedPrefix);
}

// Whether an output is rows of a variable that is marked, on one device.
bool IsRows(const Node* node, const std::string& device) {
  for (int steps = 0; node != nullptr && steps < 1000; ++steps) {
    if (DeviceOf(*node) != device) return false;
    const std::string& type = node->type_string();
    if (type == "ResourceGather" || type == "ResourceGatherNd") {
      return node->output_type(0) == tensorflow::DT_FLOAT &&
             IsCompressed(MarkOfInput(*node, 0));
    }
    if (!HandsOn(*node) && !PicksRows(*node)) return false;
    const Edge* edge = InputOf(*node, 0);
    if (edge == nullptr ||
        edge->src()->output_type(edge->src_output()) != tensorflow::DT_FLOAT) {
      return false;
    }
    node = edge->src();
  }
  return false;
}

// Whether a node gets whole numbers that a step computes.
bool GetsNumbersOfStep(const Node& node) {
  for (const Edge* edge : node.in_edges()) {
    if (edge->IsControlEdge()) continue;
    const tensorflow::DataType type = node.input_type(edge->dst_input());
    if (type != tensorflow::DT_INT32 && type != tensorflow::DT_INT64) continue;
    const Node* source = edge->src();
    while (HandsOn(*source) && InputOf(*source, 0) != nullptr) {
      source = InputOf(*source, 0)->src();
      if (source->IsMerge()) break;
    }
    if (!source->IsConstant() &&
        source->type_string() != "TfFuse>UpdateCount") {
      return true;
    }
  }
  return false;
}

// Updates that add to a variable, or compute with what they get.
bool IsUpdate(const std::string& type) {
  static const auto* const kTypes =
      new Types{"AssignAddVariableOp",      "AssignSubVariableOp",
                "ResourceScatterAdd",       "ResourceScatterSub",
                "ResourceScatterNdAdd",     "ResourceScatterNdSub",
                "TfFuse>ElementwiseUpdate", "TfFuse>StagedUpdate"};
  return kTypes->count(type) > 0 || absl::StartsWith(type, "ResourceApply") ||
         absl::StartsWith(type, "ResourceSparseApply");
}

// Updates that store what they get.
bool IsAssignment(const std::string& type) {
  return type == "AssignVariableOp" || type == "ResourceScatterUpdate" ||
         type == "ResourceScatterNdUpdate" ||
         type == "ResourceStridedSliceAssign";
}

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

// Whether an assignment's value is computed from what its variable was, all of
// it: then it is an update, such as `w.assign(w - rate * gradient)`, or a
// moving average.
bool UsesOldValue(const Edge& value) {
  const Handle handle = HandleOf(*value.dst(), 0);
  if (handle.first == nullptr) return false;
  std::vector<const Node*> waiting = {value.src()};
  std::set<const Node*> seen;
  for (size_t i = 0; i < waiting.size(); ++i) {  // The old value is near.
    const Node* node = waiting[i];
    if (!node->IsOp() || !seen.insert(node).second) continue;
    if (node->type_string() == "ReadVariableOp" &&
        HandleOf(*node, 0) == handle) {
      return true;
    }
    // The old value with other rows in it is not computed with.
    if (node->type_string() == "TensorScatterUpdate") continue;
    for (const Edge* in : node->in_edges()) {
      if (CarriesValues(*in)) waiting.push_back(in->src());
    }
  }
  return false;
}

// Whether rows that a worker gets are stored: unchanged, moved or computed
// with.
//
// A loss depends on rows, and everything that a step updates depends on the
// loss. So what adds to a variable does not count, nor what a server computes
// with before it stores it (an optimizer), nor what a worker computes with and
// stores in variables that are not trained (moving averages, metrics), as
// scalars, or as an update of what the variable was.
class StoredRows {
 public:
  StoredRows(const Graph& graph, StaticRanks* ranks) : ranks_(ranks) {
    for (const Node* node : graph.op_nodes()) {
      if (!IsAssignment(node->type_string())) continue;
      for (const Edge* edge : node->in_edges()) {
        if (!CarriesValues(*edge)) continue;
        Add({node, /*is_computed=*/false, /*is_of_server=*/false});
        if (IsStored(*edge)) {
          Add({node, /*is_computed=*/true, /*is_of_server=*/false});
        }
      }
    }
    while (!waiting_.empty()) {
      const State state = waiting_.back();
      waiting_.pop_back();
      GoBack(state);
    }
  }

  bool LeadsTo(const Edge& edge) const {
    return leading_.count({edge.dst(), false, false}) > 0;
  }

 private:
  // A node that gets what was a row: whether it has been computed with, and
  // whether by the node's device, which is a server's.
  using State = std::tuple<const Node*, bool, bool>;

  void Add(const State& state) {
    if (leading_.insert(state).second) waiting_.push_back(state);
  }

  // Adds the states that lead to one.
  void GoBack(const State& state) {
    const auto& [node, is_computed, is_of_server] = state;
    for (const Edge* edge : node->in_edges()) {
      const Node* source = edge->src();
      if (!CarriesValues(*edge) || !source->IsOp() ||
          IsUpdate(source->type_string())) {
        continue;
      }
      const bool is_near = DeviceOf(*source) == DeviceOf(*node);
      const bool computes = !Moves(*source);
      const bool serves = computes && !IsWorker(DeviceOf(*source));
      for (const bool was_computed : {false, true}) {
        for (const bool was_of_server : {false, true}) {
          if ((was_computed || computes) == is_computed &&
              ((was_of_server || serves) && is_near) == is_of_server) {
            Add({source, was_computed, was_of_server});
          }
        }
      }
    }
  }

  // Whether an assignment stores what a worker computed from rows.
  bool IsStored(const Edge& edge) {
    const Node& node = *edge.dst();
    const bool by_server =
        DeviceOf(*edge.src()) == DeviceOf(node) && !Moves(*edge.src());
    return !by_server && !MarkOfInput(node, 0).empty() &&
           ranks_->Of(*edge.src(), edge.src_output()) != 0 &&
           !(node.type_string() == "AssignVariableOp" && UsesOldValue(edge));
  }

  StaticRanks* const ranks_;
  std::set<State> leading_;
  std::vector<State> waiting_;
};

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
