// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/acknowledgements/acknowledgements.h"

#include <algorithm>
#include <set>
#include <string>

#include "passes/view/liveness.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Node;

namespace {

// Nothing but its readers and what waits for it can tell that it ran.
bool OnlyHandsOn(const Node& node) {
  static const auto* const kTypes =
      new std::set<std::string>{"Identity", "IdentityN", "NoOp"};
  return kTypes->count(node.type_string()) > 0;
}

bool IsResult(const Node& node) {
  return node.IsRetval() || node.type_string() == "_DeviceRetval";
}

// Whether only the function's end waits for any of `nodes`. Nothing else than
// each other reads their values.
bool OnlyEndWaits(const std::vector<Node*>& nodes) {
  std::set<const Node*> seen(nodes.begin(), nodes.end());
  std::vector<const Node*> pending(nodes.begin(), nodes.end());
  while (!pending.empty()) {
    const Node* const next = pending.back();
    pending.pop_back();
    for (const Edge* edge : next->out_edges()) {
      const Node* const reader = edge->dst();
      if (!reader->IsOp() || IsResult(*reader)) continue;
      if (!OnlyHandsOn(*reader)) return false;
      if (seen.insert(reader).second) pending.push_back(reader);
    }
  }
  return true;
}

// Whether all that `node` waits for runs if nothing waits for it.
bool InputsRunAnyway(const Node& node) {
  std::set<const Node*> seen;
  std::vector<const Node*> pending = {&node};
  while (!pending.empty()) {
    const Node* const next = pending.back();
    pending.pop_back();
    for (const Edge* edge : next->in_edges()) {
      const Node* const input = edge->src();
      if (!input->IsOp() || input->op_def().is_stateful()) continue;
      if (!OnlyHandsOn(*input) && !input->IsConstant()) return false;
      if (seen.insert(input).second) pending.push_back(input);
    }
  }
  return true;
}

// Whether the value is the constant that TensorFlow's partitioner sends for a
// control edge.
bool SendsConstant(const Node& send) {
  const Node* value = nullptr;
  return send.input_node(0, &value).ok() && value->IsConstant();
}

// Whether it is one, unless it may be dead.
bool MayBeAcknowledgement(const PartitionView& view, const Receive& receive) {
  if (receive.same_task || receive.client_terminated ||
      receive.send == kNoNode || !view.frame(receive.node).empty()) {
    return false;
  }
  Node* const node = view.node(receive.node);
  const std::vector<Node*> carriers = CarriersOf(node);
  // What hands its value on waits for nothing else: that would go, too.
  const auto inputs_of = [](const Node* carrier) {
    const auto& edges = carrier->in_edges();
    return std::count_if(edges.begin(), edges.end(),
                         [](const Edge* edge) { return edge->src()->IsOp(); });
  };
  return !carriers.empty() && inputs_of(node) == 0 &&
         std::all_of(carriers.begin() + 1, carriers.end(),
                     [&](Node* carrier) { return inputs_of(carrier) == 1; }) &&
         SendsConstant(*view.node(receive.send)) && OnlyEndWaits(carriers) &&
         InputsRunAnyway(*view.node(receive.send));
}

}  // namespace

std::vector<Node*> CarriersOf(Node* receive) {
  std::vector<Node*> found = {receive};
  for (size_t i = 0; i < found.size(); ++i) {
    for (const Edge* edge : found[i]->out_edges()) {
      if (edge->IsControlEdge()) continue;
      if (!edge->dst()->IsIdentity()) return {};
      found.push_back(edge->dst());
    }
  }
  return found;
}

std::vector<const Receive*> FindAcknowledgements(const PartitionView& view) {
  std::vector<const Receive*> found;
  const bool cyclic = view.size() > 0 && view.topological_order().empty();
  if (cyclic) return found;
  for (const Receive& receive : view.receives()) {
    if (MayBeAcknowledgement(view, receive)) found.push_back(&receive);
  }
  if (found.empty()) return found;
  const Liveness liveness(view);
  const auto may_be_dead = [&liveness](const Receive* receive) {
    return liveness.MayBeDead(receive->node);
  };
  found.erase(std::remove_if(found.begin(), found.end(), may_be_dead),
              found.end());
  return found;
}

}  // namespace tf_fuse
