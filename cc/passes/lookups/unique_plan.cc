// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/lookups/unique_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "passes/lookups/row_sum.h"
#include "passes/view/partition_view.h"
#include "passes/view/placed_nodes.h"
#include "passes/view/static_ranks.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

namespace {

std::vector<const Edge*> DataEdgesOf(const Node& node) {
  std::vector<const Edge*> edges;
  for (const Edge* edge : node.out_edges()) {
    if (!edge->IsControlEdge()) edges.push_back(edge);
  }
  std::sort(edges.begin(), edges.end(), [](const Edge* a, const Edge* b) {
    return std::make_tuple(a->dst()->name(), a->dst_input()) <
           std::make_tuple(b->dst()->name(), b->dst_input());
  });
  return edges;
}

// It has its input's elements in their order.
bool Reshapes(const Node& node) {
  static const auto* const kTypes =
      new std::set<std::string>{"Identity", "Reshape", "ExpandDims", "Squeeze"};
  return kTypes->count(node.type_string()) > 0;
}

// It has its input's rows in their order.
bool HandsRowsOn(const Node& node) {
  static const auto* const kTypes = new std::set<std::string>{
      "Identity", "Snapshot", "StopGradient", "PreventGradient", "Cast"};
  return kTypes->count(node.type_string()) > 0;
}

bool CanAdd(DataType type) {
  return type == tensorflow::DT_FLOAT || type == tensorflow::DT_DOUBLE ||
         type == tensorflow::DT_HALF || type == tensorflow::DT_BFLOAT16 ||
         type == tensorflow::DT_INT32 || type == tensorflow::DT_INT64;
}

// What a node is that adds up rows of another task.
struct Sum {
  RowSum inputs;
  const Edge* ids = nullptr;  // From that task.
  Node* unique = nullptr;     // Beside the sum, if that goes by its numbers.
};

// A tensor of gradients, and the sums that it leads to.
struct Gradient {
  NodeOutput values;
  NodeOutput ids;
  NodeOutput base;
  std::vector<NodeInput> uses;  // Of the values.
  std::set<Node*> sums;
};

class UniquePlanner {
 public:
  UniquePlanner(const Graph& graph,
                const std::function<bool(const std::string&)>& is_local)
      : is_local_(is_local), ranks_(graph), nodes_(NodesByName(graph)) {}

  std::vector<UniqueIds> Plan() {
    for (Node* node : nodes_) {
      if (node->type_string() == "ResourceGather") PlanLookup(node);
    }
    PlanGradients();
    std::vector<UniqueIds> result;
    for (auto& [_, planned] : planned_) result.push_back(std::move(planned));
    return result;
  }

 private:
  using Key = std::pair<std::string, int>;

  // The edge of an input that comes from ids of another task on a CPU, that is
  // this process; nullptr if there is none.
  const Edge* IdsOf(const Node& node, int input) {
    const Edge* edge = InputOf(node, input);
    if (edge == nullptr || !edge->src()->IsOp()) return nullptr;
    const std::string from = DeviceOf(*edge->src());
    const std::string to = DeviceOf(node);
    if (DeviceTypeOf(from) != "CPU" || DeviceTypeOf(to) != "CPU" ||
        TaskOfDevice(from) == TaskOfDevice(to) || !IsLocal(from)) {
      return nullptr;
    }
    const DataType type = edge->src()->output_type(edge->src_output());
    if (type != tensorflow::DT_INT32 && type != tensorflow::DT_INT64) {
      return nullptr;
    }
    const std::optional<int> rank = ranks_.Of(*edge->src(), edge->src_output());
    if (rank.has_value() && *rank == 0) return nullptr;
    const NodeOutput base = BaseOf({edge->src(), edge->src_output()});
    if (base.node->type_string() == "Unique" && base.output == 0) {
      return nullptr;
    }
    return edge;
  }

  bool IsLocal(const std::string& device) {
    auto it = locals_.find(device);
    if (it == locals_.end()) {
      it = locals_.emplace(device, is_local_(device)).first;
    }
    return it->second;
  }

  // The tensor before it has got its shape, on the same device.
  static NodeOutput BaseOf(NodeOutput tensor) {
    const std::string device = DeviceOf(*tensor.node);
    while (Reshapes(*tensor.node)) {
      const Edge* edge = InputOf(*tensor.node, 0);
      if (edge == nullptr || !edge->src()->IsOp() ||
          DeviceOf(*edge->src()) != device) {
        break;
      }
      tensor = {edge->src(), edge->src_output()};
    }
    return tensor;
  }

  UniqueIds& PlannedOf(const NodeOutput& base) {
    UniqueIds& planned = planned_[{base.node->name(), base.output}];
    planned.ids = base;
    planned.device = DeviceOf(*base.node);
    return planned;
  }

  void PlanLookup(Node* gather) {
    int batch_dims = 0;
    (void)tensorflow::TryGetNodeAttr(gather->attrs(), "batch_dims",
                                     &batch_dims);
    const Edge* edge = IdsOf(*gather, 1);
    if (edge == nullptr || batch_dims != 0) return;
    const NodeOutput ids = {edge->src(), edge->src_output()};
    const std::string device = DeviceOf(*ids.node);
    std::map<Key, RowsOfIds> found;
    std::vector<Node*> waiting = {gather};
    while (!waiting.empty()) {
      Node* node = waiting.back();
      waiting.pop_back();
      if (!tensorflow::DataTypeCanUseMemcpy(node->output_type(0))) return;
      for (const Edge* out : DataEdgesOf(*node)) {
        const std::string to = DeviceOf(*out->dst());
        if (to == device) {
          RowsOfIds& rows = found[{node->name(), 0}];
          rows.rows = {node, 0};
          rows.ids = ids;
          rows.uses.push_back({out->dst(), out->dst_input()});
        } else if (to == DeviceOf(*gather) && HandsRowsOn(*out->dst())) {
          waiting.push_back(out->dst());
        } else {
          return;
        }
      }
    }
    if (found.empty()) return;
    UniqueIds& planned = PlannedOf(BaseOf(ids));
    planned.uses.push_back({gather, 1});
    for (auto& [_, rows] : found) planned.found.push_back(std::move(rows));
  }

  void PlanGradients() {
    for (Node* node : nodes_) {
      Sum sum;
      sum.inputs =
          FindRowSum(*node, [&](int input) { return IsScalar(*node, input); });
      if (sum.inputs.ids < 0) continue;
      const Edge* edge = InputOf(*node, sum.inputs.ids);
      if (edge != nullptr && edge->src()->type_string() == "Unique" &&
          edge->src_output() == 1 &&
          DeviceOf(*edge->src()) == DeviceOf(*node)) {
        sum.unique = edge->src();
        sum.ids = IdsOf(*sum.unique, 0);
      } else {
        sum.ids = IdsOf(*node, sum.inputs.ids);
      }
      if (sum.ids != nullptr) sums_.emplace(node, sum);
    }
    std::map<Key, Gradient> gradients;
    for (Node* node : nodes_) {
      if (sums_.count(node) > 0) AddGradient(node, &gradients);
    }
    DropWithUniqueOfOthers(&gradients);
    std::set<Node*> uniques;
    for (auto& [_, gradient] : gradients) {
      UniqueIds& planned = PlannedOf(gradient.base);
      for (Node* node : gradient.sums) {
        const Sum& sum = sums_.at(node);
        if (sum.unique == nullptr) {
          planned.uses.push_back({node, sum.inputs.ids});
        } else if (uniques.insert(sum.unique).second) {
          planned.uses.push_back({sum.unique, 0});
        }
      }
      planned.sums.push_back(
          {gradient.values, gradient.ids, std::move(gradient.uses)});
    }
  }

  // Plans the gradient that a sum's values are computed from, if only sums get
  // it on their device.
  void AddGradient(Node* node, std::map<Key, Gradient>* gradients) {
    const Sum& sum = sums_.at(node);
    const std::string device = DeviceOf(*node);
    const Edge* edge = InputOf(*node, sum.inputs.values);
    while (edge != nullptr && DeviceOf(*edge->src()) == device) {
      const int input = ScaledInputOf(*edge->src());
      edge = input < 0 ? nullptr : InputOf(*edge->src(), input);
    }
    if (edge == nullptr ||
        DeviceOf(*edge->src()) != DeviceOf(*sum.ids->src())) {
      return;
    }
    Gradient gradient;
    gradient.values = {edge->src(), edge->src_output()};
    gradient.ids = {sum.ids->src(), sum.ids->src_output()};
    gradient.base = BaseOf(gradient.ids);
    // (One of another device is another gradient.)
    const Key key = {edge->src()->name() + " for " + device,
                     edge->src_output()};
    if (gradients->count(key) > 0) return;
    const DataType type = edge->src()->output_type(edge->src_output());
    const auto rank = ranks_.Of(*gradient.values.node, gradient.values.output);
    const auto of_ids = ranks_.Of(*gradient.ids.node, gradient.ids.output);
    if (!CanAdd(type) || !rank.has_value() || !of_ids.has_value() ||
        *rank < *of_ids) {
      return;
    }
    for (const Edge* out : DataEdgesOf(*gradient.values.node)) {
      if (out->src_output() != gradient.values.output ||
          DeviceOf(*out->dst()) != device) {
        continue;
      }
      if (!OnlyAddsUp(*out, &gradient)) return;
      gradient.uses.push_back({out->dst(), out->dst_input()});
    }
    gradients->emplace(key, std::move(gradient));
  }

  // The input that a node multiplies by a scalar, or hands on; -1 if it does
  // anything else.
  int ScaledInputOf(const Node& node) {
    const std::string& type = node.type_string();
    if (type == "Identity" || type == "Neg") return 0;
    if (type == "Mul" && IsScalar(node, 0)) return 1;
    if ((type == "Mul" || type == "RealDiv") && IsScalar(node, 1)) return 0;
    return -1;
  }

  bool IsScalar(const Node& node, int input) {
    const Edge* edge = InputOf(node, input);
    if (edge == nullptr) return false;
    const auto rank = ranks_.Of(*edge->src(), edge->src_output());
    return rank.has_value() && *rank == 0;
  }

  // Whether an edge leads to sums by the gradient's ids, and to nothing else.
  bool OnlyAddsUp(const Edge& edge, Gradient* gradient) {
    Node* node = edge.dst();
    const auto sum = sums_.find(node);
    if (sum != sums_.end() && edge.dst_input() == sum->second.inputs.values) {
      const Edge* ids = sum->second.ids;
      if (ids->src() != gradient->ids.node ||
          ids->src_output() != gradient->ids.output) {
        return false;
      }
      gradient->sums.insert(node);
      return true;
    }
    if (edge.dst_input() != ScaledInputOf(*node)) return false;
    const auto edges = DataEdgesOf(*node);
    return std::all_of(edges.begin(), edges.end(), [&](const Edge* out) {
      return DeviceOf(*out->dst()) == DeviceOf(*node) &&
             OnlyAddsUp(*out, gradient);
    });
  }

  // A Unique that gets each id once makes other numbers, so all sums by these
  // have to be planned.
  void DropWithUniqueOfOthers(std::map<Key, Gradient>* gradients) {
    for (bool changed = true; changed;) {
      changed = false;
      std::set<Node*> planned;
      for (const auto& [_, gradient] : *gradients) {
        planned.insert(gradient.sums.begin(), gradient.sums.end());
      }
      for (auto it = gradients->begin(); it != gradients->end();) {
        const bool drop = std::any_of(
            it->second.sums.begin(), it->second.sums.end(), [&](Node* node) {
              const Node* unique = sums_.at(node).unique;
              return unique != nullptr && !AreAllIn(*unique, planned);
            });
        changed |= drop;
        it = drop ? gradients->erase(it) : std::next(it);
      }
    }
  }

  bool AreAllIn(const Node& unique, const std::set<Node*>& planned) const {
    for (const Edge* out : DataEdgesOf(unique)) {
      if (out->src_output() == 1 &&
          (planned.count(out->dst()) == 0 ||
           out->dst_input() != sums_.at(out->dst()).inputs.ids)) {
        return false;
      }
    }
    return true;
  }

  const std::function<bool(const std::string&)>& is_local_;
  StaticRanks ranks_;
  std::vector<Node*> nodes_;
  std::map<std::string, bool> locals_;
  std::map<Node*, Sum> sums_;
  std::map<Key, UniqueIds> planned_;  // By base of the ids.
};

}  // namespace

std::vector<UniqueIds> PlanUniqueIds(
    const Graph& graph,
    const std::function<bool(const std::string& device)>& is_local) {
  return UniquePlanner(graph, is_local).Plan();
}

}  // namespace tf_fuse
