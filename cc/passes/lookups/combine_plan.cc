// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/lookups/combine_plan.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "passes/lookups/row_combiners.h"
#include "passes/view/partition_view.h"
#include "passes/view/placed_nodes.h"
#include "passes/view/static_ranks.h"
#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

namespace {

// A shape, at most.
constexpr int64_t kFewElements = 16;

using SourceOutput = std::pair<const Node*, int>;

// Nodes of a worker that move together or not at all.
struct Region {
  std::string server;
  std::string worker;
  bool is_gradient = false;
  std::set<Node*> nodes;
  std::vector<Node*> waiting;  // Of these: not looked at yet.
  bool saves = false;          // It has a combiner, or the gradient of one.
  // What the server gets that it does not get today, one element for each id.
  std::map<SourceOutput, int> sent;

  void Add(Node* node) {
    if (nodes.insert(node).second) waiting.push_back(node);
  }
};

class CombinePlanner {
 public:
  explicit CombinePlanner(const Graph& graph)
      : ranks_(graph), nodes_(NodesByName(graph)) {}

  std::vector<MovedOperation> Plan() {
    for (Node* node : nodes_) {
      if (node->type_string() == "ResourceGather") PlanLookup(node);
    }
    std::vector<MovedOperation> plan;
    if (moved_.empty()) return plan;
    for (Node* node : nodes_) PlanGradient(node);
    for (const auto& [server, _] : segments_) MoveNumbers(server);
    for (Node* node : nodes_) {
      const auto it = moved_.find(node);
      if (it != moved_.end()) plan.push_back({node, it->second});
    }
    return plan;
  }

 private:
  void PlanLookup(Node* gather) {
    Region region;
    region.server = DeviceOf(*gather);
    if (DeviceTypeOf(region.server) != "CPU") return;
    std::set<const Node*> seen;
    std::vector<const Node*> rows = {gather};
    while (!rows.empty()) {
      const Node* node = rows.back();
      rows.pop_back();
      if (!seen.insert(node).second) continue;
      for (const Edge* edge : node->out_edges()) {
        if (edge->IsControlEdge()) continue;
        if (!IsAt(*edge->dst(), region.server)) {
          region.worker = DeviceOf(*edge->dst());
          region.Add(edge->dst());
        } else if (moved_.count(edge->dst()) == 0 &&
                   IsByElement(*edge->dst())) {
          rows.push_back(edge->dst());
        }
      }
    }
    if (Grow(&region) && MayGain(*gather, region)) Move(region);
  }

  // From a tensor that a server gets.
  void PlanGradient(Node* node) {
    if (moved_.count(node) > 0 || Measures(*node)) return;
    for (const Edge* edge : node->out_edges()) {
      if (edge->IsControlEdge()) continue;
      Region region;
      region.server = DeviceNow(*edge->dst());
      region.worker = DeviceOf(*node);
      region.is_gradient = true;
      if (region.server == region.worker ||
          segments_.count(region.server) == 0 ||
          IsSmall(*node, edge->src_output())) {
        continue;
      }
      region.Add(node);
      if (Grow(&region)) Move(region);
      return;  // One with consumers on two servers does not grow.
    }
  }

  // Adds to a region what has to move with it; false if it cannot.
  bool Grow(Region* region) {
    if (region->nodes.empty() || DeviceTypeOf(region->worker) != "CPU" ||
        TaskOfDevice(region->worker) == TaskOfDevice(region->server)) {
      return false;
    }
    while (!region->waiting.empty()) {
      Node* node = region->waiting.back();
      region->waiting.pop_back();
      if (!node->IsOp() || moved_.count(node) > 0 ||
          DeviceOf(*node) != region->worker || node->op_def().is_stateful()) {
        return false;
      }
      const bool begins = region->is_gradient && MakesGradient(*node, *region);
      const bool ends =
          Measures(*node) ||
          (!region->is_gradient && CombinesRows(*node, SizesOf(*node, 0)));
      region->saves |= begins || (ends && !Measures(*node));
      if (!begins && !ends && !MayLieBetween(*node, *region)) return false;
      for (const Edge* edge : node->in_edges()) {
        if (!edge->IsControlEdge() && !(begins && edge->dst_input() == 0)) {
          AddInput(*edge, region);
        }
      }
      if (ends) continue;
      for (const Edge* edge : node->out_edges()) {
        if (!edge->IsControlEdge() && !IsAt(*edge->dst(), region->server)) {
          region->Add(edge->dst());
        }
      }
    }
    return region->saves;
  }

  bool MayLieBetween(const Node& node, const Region& region) {
    if (IsByElement(node)) return true;
    // (The first one adds up gradients of equal ids, or makes them dense.)
    return region.is_gradient ? node.type_string() == "UnsortedSegmentSum" ||
                                    UndoesBroadcast(node)
                              : PicksByNumber(node);
  }

  // Whether a node makes gradients of rows from those of sums that a server
  // makes.
  bool MakesGradient(const Node& node, const Region& region) {
    if (Repeats(node)) return true;
    if (!IsGradientOfSegments(node) && !PicksByNumber(node)) return false;
    const auto& segments = segments_[region.server];
    return segments.count(NumbersOf(node, SegmentIdsOf(node))) > 0;
  }

  // The server has an input, gets it, or makes it. (It gets copies of constants
  // with the graph.)
  void AddInput(const Edge& edge, Region* region) {
    Node* source = edge.src();
    if (source->IsConstant() || IsAt(*source, region->server)) return;
    if (!IsSmall(*source, edge.src_output()) && !IsList(edge)) {
      region->Add(source);
    } else if (region->nodes.count(source) == 0 &&
               !IsSent(*source, edge.src_output(), region->server)) {
      region->sent[{source, edge.src_output()}] = BytesForEachId(edge);
    }
  }

  void Move(const Region& region) {
    for (Node* node : region.nodes) {
      moved_[node] = region.server;
      const int ids = SegmentIdsOf(*node);
      if (region.is_gradient || ids < 0) continue;
      segments_[region.server].insert(NumbersOf(*node, ids));
    }
    // (Also if it has none, as after a sum along an axis.)
    segments_[region.server];
  }

  // What computes numbers from others that the server has, and for it alone.
  void MoveNumbers(const std::string& server) {
    std::set<const Node*> numbers = NumbersFor(server);
    const auto stays = [&](const Node* node) {
      bool is_used = false;
      for (const Edge* edge : node->out_edges()) {
        if (edge->IsControlEdge()) continue;
        is_used |= moved_.count(edge->dst()) + numbers.count(edge->dst()) > 0;
        if (!IsAt(*edge->dst(), server) && numbers.count(edge->dst()) == 0) {
          return true;
        }
      }
      const auto& inputs = node->in_edges();
      return !is_used ||
             std::any_of(inputs.begin(), inputs.end(), [&](const Edge* edge) {
               const Node& source = *edge->src();
               return !edge->IsControlEdge() && !source.IsConstant() &&
                      numbers.count(&source) == 0 && !IsAt(source, server) &&
                      !IsSent(source, edge->src_output(), server);
             });
    };
    for (bool changed = true; changed;) {
      changed = false;
      for (auto it = numbers.begin(); it != numbers.end();) {
        const bool drop = stays(*it);
        changed |= drop;
        it = drop ? numbers.erase(it) : std::next(it);
      }
    }
    for (const Node* node : numbers) moved_[node] = server;
  }

  // What computes whole numbers or booleans, from which what moves to a server
  // is computed.
  std::set<const Node*> NumbersFor(const std::string& server) const {
    std::set<const Node*> numbers;
    std::vector<const Node*> waiting;
    for (const auto& [node, device] : moved_) {
      if (device == server) waiting.push_back(node);
    }
    while (!waiting.empty()) {
      const Node* node = waiting.back();
      waiting.pop_back();
      for (const Edge* edge : node->in_edges()) {
        const Node* source = edge->src();
        if (!edge->IsControlEdge() && ComputesNumbers(*source) &&
            moved_.count(source) == 0 && !IsAt(*source, server) &&
            numbers.insert(source).second) {
          waiting.push_back(source);
        }
      }
    }
    return numbers;
  }

  // Whether rows are larger than what travels besides for each.
  bool MayGain(const Node& gather, const Region& region) {
    int64_t besides = 0;
    for (const auto& [_, bytes] : region.sent) besides += bytes;
    const Edge* ids = InputOf(gather, 1);
    const auto sizes = ranks_.Sizes(gather, 0);
    if (ids == nullptr || !sizes.has_value()) return true;
    const auto axes = ranks_.Of(*ids->src(), ids->src_output());
    if (!axes.has_value()) return true;
    int64_t bytes = tensorflow::DataTypeSize(gather.output_type(0));
    for (size_t axis = *axes; axis < sizes->size(); ++axis) {
      if ((*sizes)[axis] < 0) return true;
      bytes *= (*sizes)[axis];
    }
    return bytes > besides;
  }

  int BytesForEachId(const Edge& edge) {
    const Node& source = *edge.src();
    const auto sizes = ranks_.Sizes(source, edge.src_output());
    if (sizes.has_value()) {
      int64_t elements = 1;
      for (const int64_t size : *sizes) {
        elements = size < 0 ? kFewElements + 1 : elements * size;
        if (elements > kFewElements) break;
      }
      if (elements <= kFewElements) return 0;
    }
    return tensorflow::DataTypeSize(source.output_type(edge.src_output()));
  }

  // Whether it has one element for each id, or a few.
  bool IsSmall(const Node& node, int output) {
    const auto sizes = ranks_.Sizes(node, output);
    return sizes.has_value() && (sizes->size() < 2 || sizes->back() == 1);
  }

  // Whether it has an unknown shape, and is numbers of rows or of segments, or
  // a shape. (Rows that are looked up are rarely whole numbers.)
  bool IsList(const Edge& edge) {
    const DataType type = edge.src()->output_type(edge.src_output());
    return edge.dst_input() > 0 &&
           (type == tensorflow::DT_INT32 || type == tensorflow::DT_INT64) &&
           !ranks_.Of(*edge.src(), edge.src_output()).has_value();
  }

  std::vector<int64_t> SizesOf(const Node& node, int input) {
    const Edge* edge = InputOf(node, input);
    if (edge == nullptr) return {};
    return ranks_.Sizes(*edge->src(), edge->src_output())
        .value_or(std::vector<int64_t>());
  }

  // The numbers that an input is, before their type or shape has changed, and
  // before negative ones have become 0.
  static SourceOutput NumbersOf(const Node& node, int input) {
    const Edge* edge = InputOf(node, input);
    while (edge != nullptr && edge->src()->IsOp()) {
      const std::string& type = edge->src()->type_string();
      if (type != "Identity" && type != "Cast" && type != "Reshape" &&
          type != "Maximum") {
        break;
      }
      const Edge* before = InputOf(*edge->src(), 0);
      if (before == nullptr) break;
      edge = before;
    }
    if (edge == nullptr) return {nullptr, 0};
    return {edge->src(), edge->src_output()};
  }

  bool IsSent(const Node& node, int output, const std::string& server) const {
    const auto& edges = node.out_edges();
    return std::any_of(edges.begin(), edges.end(), [&](const Edge* edge) {
      return edge->src_output() == output && IsAt(*edge->dst(), server);
    });
  }

  bool IsAt(const Node& node, const std::string& device) const {
    return DeviceNow(node) == device;
  }

  std::string DeviceNow(const Node& node) const {
    const auto it = moved_.find(&node);
    return it != moved_.end() ? it->second : DeviceOf(node);
  }

  StaticRanks ranks_;
  std::vector<Node*> nodes_;
  std::map<const Node*, std::string> moved_;
  // By server: the numbers by which it adds up rows.
  std::map<std::string, std::set<SourceOutput>> segments_;
};

}  // namespace

std::vector<MovedOperation> PlanCombiners(const Graph& graph) {
  return CombinePlanner(graph).Plan();
}

}  // namespace tf_fuse
