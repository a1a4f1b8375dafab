// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv_analysis.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "passes/ancestry.h"
#include "passes/dynamic_groups.h"
#include "passes/feed_classes.h"
#include "passes/liveness.h"
#include "passes/ref_reads.h"
#include "transport/fused_keys.h"
#include "transport/tensor_frame.h"

namespace tf_fuse {

using tensorflow::Node;

namespace {

// Whether `id` may run and be dead. The Merge of a loop runs in an iteration
// only if what comes round is live: nothing dead begins an iteration.
bool MayRunDead(const PartitionView& view, const Liveness& liveness,
                NodeId id) {
  if (!liveness.MayBeDead(id)) return false;
  const auto& edges = view.in_edges(id);
  const bool is_of_loop =
      view.node(id)->IsMerge() &&
      std::any_of(edges.begin(), edges.end(),
                  [](const auto& edge) { return edge.is_back_edge; });
  return !is_of_loop ||
         std::any_of(edges.begin(), edges.end(), [&](const auto& edge) {
           return !edge.is_back_edge && liveness.MayBeDead(edge.node);
         });
}

// A _Recv runs although an input of it is dead, and then gives a dead value;
// another operation does not run, and what was sent is not taken.
bool HasInputThatMayBeDead(const PartitionView& view, const Liveness& liveness,
                           const Receive& receive) {
  const auto& edges = view.in_edges(receive.node);
  return std::any_of(edges.begin(), edges.end(), [&](const auto& edge) {
    return edge.node != receive.send && MayRunDead(view, liveness, edge.node);
  });
}

bool MayFuseDevice(const std::string& device, const AnalysisOptions& options) {
  const std::string type = DeviceTypeOf(device);
  return type == "CPU" || (options.fuse_gpu && type == "GPU");
}

}  // namespace

std::string FindBlocker(const PartitionView& view, const Liveness& liveness,
                        const Receive& receive,
                        const AnalysisOptions& options) {
  // A fed or fetched value: the client waits for it under its own key.
  if (receive.client_terminated) return skip::kClientTerminated;
  // The device context of other devices has to copy the value.
  if (!MayFuseDevice(receive.recv_device, options) ||
      !MayFuseDevice(receive.send_device, options)) {
    return skip::kNotCpu;
  }
  // Its key depends on the call frame of the function.
  bool host_memory = false;
  if (TryGetNodeAttr(view.node(receive.node)->attrs(), "_hostmem_sendrecv",
                     &host_memory) &&
      host_memory) {
    return skip::kHostMemory;
  }
  if (!CanBePacked(receive.dtype)) return skip::kType;
  const bool to_gpu = DeviceTypeOf(receive.recv_device) == "GPU";
  const bool of_gpu = to_gpu || DeviceTypeOf(receive.send_device) == "GPU";
  // What is no plain bytes is not copied between memories; and a Switch on a
  // GPU has some types in the memory of the host, and others not.
  if ((of_gpu && !tensorflow::DataTypeCanUseMemcpy(receive.dtype)) ||
      (to_gpu && liveness.MayBeDead(receive.node))) {
    return skip::kNotCpu;
  }
  if (view.frame(receive.node) == kUnknownFrame) return skip::kUnreachableNode;
  const bool in_loop = !view.frame(receive.node).empty();
  if (in_loop && HasInputThatMayBeDead(view, liveness, receive)) {
    return skip::kLoopFrame;
  }
  if (liveness.MayBeDead(receive.node) &&
      (!options.fuse_may_be_dead ||
       HasInputThatMayBeDead(view, liveness, receive))) {
    return skip::kMayBeDead;
  }
  if (IsKeyTooLong(receive, options)) {
    return skip::kKeyTooLong;
  }
  return "";
}

namespace {

// Where receives that may become one come from, go to, and run.
struct Route {
  std::string send_device;
  std::string recv_device;
  int64_t incarnation = 0;
  std::string frame;
  std::vector<NodeId> triggers;
  bool on_host = false;

  auto Tie() const {
    return std::tie(send_device, recv_device, incarnation, frame, triggers,
                    on_host);
  }
  bool operator<(const Route& other) const { return Tie() < other.Tie(); }
  bool operator==(const Route& other) const { return Tie() == other.Tie(); }
};

// Receives that may become one: the same route, depth, blockers and feeds.
struct GroupKey {
  Route route;
  int depth = 0;
  int blockers = 0;
  int feeds = 0;

  auto Tie() const { return std::tie(route, depth, blockers, feeds); }
  bool operator<(const GroupKey& other) const { return Tie() < other.Tie(); }
};

GroupKey KeyOf(const PartitionView& view, const Ancestry& ancestry,
               const Receive& receive, Grouping grouping) {
  GroupKey key;
  key.route = {receive.send_device,
               receive.recv_device,
               receive.send_device_incarnation,
               "",
               {},
               receive.on_host};
  if (grouping != Grouping::kAnyFrame) {
    key.route.frame = view.frame(receive.node);
    key.route.triggers = FindTriggers(view, receive);
  }
  if (grouping != Grouping::kAll) key.depth = ancestry.depth[receive.node];
  key.blockers = ancestry.blockers[receive.node];
  return key;
}

using Candidates = std::map<GroupKey, std::vector<const Receive*>>;

// Who uses each node: the other direction of PartitionView::in_edges.
using Consumers = std::vector<std::vector<NodeId>>;

Consumers FindConsumers(const PartitionView& view) {
  Consumers consumers(view.size());
  for (NodeId id = 0; id < view.size(); ++id) {
    for (const PartitionView::Edge& edge : view.in_edges(id)) {
      consumers[edge.node].push_back(id);
    }
  }
  return consumers;
}

// Hands its input on, so that holding it up holds up nothing by itself. What
// read_value() returns goes through an Identity.
bool OnlyForwards(const Node& node) {
  static const auto* const kTypes = new std::set<std::string>{
      "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"};
  return kTypes->count(node.type_string()) > 0;
}

// The nodes that use a value, those that only forward it looked through. Empty
// if it ends in a node that nothing uses.
std::vector<NodeId> FinalConsumers(const PartitionView& view,
                                   const Consumers& consumers, NodeId start) {
  std::vector<NodeId> found;
  std::vector<NodeId> pending = {start};
  std::set<NodeId> seen;
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    if (consumers[id].empty()) return {};
    for (const NodeId consumer : consumers[id]) {
      if (!seen.insert(consumer).second) continue;
      const bool forwards = OnlyForwards(*view.node(consumer));
      (forwards ? pending : found).push_back(consumer);
    }
  }
  return found;
}

// Whether nothing that uses `receive` would wait for more than it does now, if
// `receive` came with the group of this key.
bool MayJoin(const PartitionView& view, const Ancestry& ancestry,
             const Receive& receive, const std::vector<NodeId>& uses,
             const GroupKey& key) {
  const std::set<NodeId>& of_group = ancestry.blocker_sets[key.blockers];
  // The group must not wait for more either.
  if (!IsWithin(ancestry.BlockersAbove(receive.node), of_group)) return false;
  return !uses.empty() && std::all_of(uses.begin(), uses.end(), [&](NodeId id) {
    // A receive counts itself, but does not wait for itself.
    const int waits_for = ancestry.depth[id] - (ancestry.is_remote[id] ? 1 : 0);
    // A Merge waits for one of its inputs only.
    return !view.node(id)->IsMerge() && waits_for >= key.depth &&
           IsWithin(of_group, ancestry.BlockersAbove(id));
  });
}

// Lets each receive that is alone join the next deeper group that it may.
void JoinLoneReceives(const PartitionView& view, const Ancestry& ancestry,
                      Candidates* candidates) {
  const Consumers consumers = FindConsumers(view);
  // In the order of the keys: deeper groups of the same route come later.
  for (auto it = candidates->begin(); it != candidates->end();) {
    auto joined = candidates->end();
    if (it->second.size() == 1) {
      const Receive& receive = *it->second[0];
      const std::vector<NodeId> uses =
          FinalConsumers(view, consumers, receive.node);
      for (auto other = std::next(it);
           other != candidates->end() && other->first.route == it->first.route;
           ++other) {
        if (other->first.depth > it->first.depth &&
            other->first.feeds == it->first.feeds &&
            MayJoin(view, ancestry, receive, uses, other->first)) {
          joined = other;
          break;
        }
      }
    }
    if (joined == candidates->end()) {
      ++it;
      continue;
    }
    joined->second.push_back(it->second[0]);
    it = candidates->erase(it);
  }
}

void Skip(const std::vector<const Receive*>& receives,
          const std::string& reason, FusePlan* plan) {
  for (const Receive* receive : receives) {
    plan->skipped.push_back({receive, reason});
  }
}

void SortByTensorName(std::vector<const Receive*>* receives) {
  std::sort(receives->begin(), receives->end(),
            [](const Receive* a, const Receive* b) {
              return a->tensor_name < b->tensor_name;
            });
}

// Divides what may be one call by the first node that uses each.
std::vector<std::vector<const Receive*>> SplitByConsumer(
    const PartitionView& view, const Consumers& consumers,
    const std::vector<const Receive*>& receives) {
  std::map<std::string, std::vector<const Receive*>> parts;
  for (const Receive* receive : receives) {
    std::string first;
    for (const NodeId id : FinalConsumers(view, consumers, receive->node)) {
      const std::string& name = view.node(id)->name();
      if (first.empty() || name < first) first = name;
    }
    parts[first].push_back(receive);
  }
  std::vector<std::vector<const Receive*>> result;
  for (auto& [name, part] : parts) result.push_back(std::move(part));
  return result;
}

// Divides what may be one call where waiting costs more than a call. What is
// too large for a frame is put into `large`.
std::vector<std::vector<const Receive*>> SplitByEstimates(
    const std::map<NodeId, ReceiveEstimate>& estimates,
    const AnalysisOptions& options, std::vector<const Receive*> receives,
    std::vector<const Receive*>* large) {
  std::vector<const Receive*> small;
  std::vector<Arrival> arrivals;
  for (const Receive* receive : receives) {
    const ReceiveEstimate& estimate = estimates.at(receive->node);
    const double bytes =
        estimate.bytes.value_or(options.cost_model.unknown_bytes);
    if (bytes > options.max_packed_bytes) {
      large->push_back(receive);
      continue;
    }
    small.push_back(receive);
    arrivals.push_back({bytes, estimate.ready_us, estimate.tail_us});
  }
  CostModel model = options.cost_model;
  model.overlap = options.hosts.Overlap(TaskOfDevice(receives[0]->send_device),
                                        TaskOfDevice(receives[0]->recv_device));
  std::vector<std::vector<const Receive*>> result;
  for (const auto& part : SplitByCost(arrivals, model)) {
    result.emplace_back();
    for (const size_t i : part) result.back().push_back(small[i]);
  }
  return result;
}

}  // namespace

bool IsKeyTooLong(const Receive& receive, const AnalysisOptions& options) {
  return RendezvousKeyBytes(receive.send_device.size(),
                            receive.recv_device.size(),
                            receive.tensor_name.size()) > options.max_key_bytes;
}

std::vector<NodeId> FindTriggers(const PartitionView& view,
                                 const Receive& receive) {
  std::set<NodeId> triggers;
  if (view.frame(receive.node).empty()) return {};
  for (const PartitionView::Edge& edge : view.in_edges(receive.node)) {
    if (edge.node != receive.send) triggers.insert(edge.node);
  }
  return {triggers.begin(), triggers.end()};
}

bool ParseSplitting(const std::string& name, Splitting* splitting) {
  static const auto* const kNames =
      new std::map<std::string, Splitting>{{"level", Splitting::kLevel},
                                           {"consumer", Splitting::kConsumer},
                                           {"cost", Splitting::kCost},
                                           {"dynamic", Splitting::kDynamic}};
  auto it = kNames->find(name);
  if (it == kNames->end()) return false;
  *splitting = it->second;
  return true;
}

FusePlan PlanFusedReceives(const PartitionView& view,
                           const AnalysisOptions& options) {
  FusePlan plan;
  const bool cyclic = view.size() > 0 && view.topological_order().empty();
  if (cyclic) {
    for (const Receive& receive : view.receives()) {
      plan.skipped.push_back({&receive, skip::kCyclicGraph});
    }
    return plan;
  }
  const Liveness liveness(view);
  const Ancestry ancestry = ComputeAncestry(view);
  const std::vector<int> feed_classes = FindFeedClasses(view);
  const std::set<NodeId> racing = FindRacingRefReads(view);
  std::map<std::string, std::string> task_blockers;
  auto task_blocker = [&](const std::string& task) -> const std::string& {
    auto it = task_blockers.find(task);
    if (it == task_blockers.end()) {
      std::string reason =
          options.task_blocker ? options.task_blocker(task) : "";
      it = task_blockers.emplace(task, std::move(reason)).first;
    }
    return it->second;
  };

  Candidates candidates;
  std::vector<DynamicReceive> dynamic;
  for (const Receive& receive : view.receives()) {
    if (receive.same_task) {
      ++plan.local_receives;
      continue;
    }
    std::string reason = FindBlocker(view, liveness, receive, options);
    if (reason.empty() && racing.count(receive.node) > 0) {
      reason = skip::kRefRace;
    }
    if (!reason.empty()) {
      plan.skipped.push_back({&receive, reason});
      continue;
    }
    const bool unseen = ancestry.partly_unseen[receive.node];
    if (unseen || options.splitting == Splitting::kDynamic) {
      dynamic.push_back({&receive, liveness.MayBeDead(receive.node),
                         unseen ? skip::kSenderNotVisible : skip::kAlone});
      continue;
    }
    GroupKey key = KeyOf(view, ancestry, receive, options.grouping);
    key.feeds = feed_classes[receive.node];
    candidates[std::move(key)].push_back(&receive);
  }
  JoinLoneReceives(view, ancestry, &candidates);
  if (options.splitting == Splitting::kCost) {
    plan.estimates = EstimateReceives(view, options.cost_model);
  }
  const Consumers consumers = FindConsumers(view);
  for (auto& [key, receives] : candidates) {
    // One receive gains nothing from a frame.
    std::string reason = receives.size() < 2 ? skip::kAlone : "";
    if (reason.empty())
      reason = task_blocker(TaskOfDevice(key.route.recv_device));
    if (!reason.empty()) {
      Skip(receives, reason, &plan);
      continue;
    }
    SortByTensorName(&receives);
    std::vector<std::vector<const Receive*>> parts = {receives};
    if (options.splitting == Splitting::kConsumer) {
      parts = SplitByConsumer(view, consumers, receives);
    } else if (options.splitting == Splitting::kCost) {
      std::vector<const Receive*> large;
      parts = SplitByEstimates(plan.estimates, options, receives, &large);
      Skip(large, skip::kLarge, &plan);
    }
    for (const std::vector<const Receive*>& whole : parts) {
      for (const auto& part :
           SplitEvenly(whole, options.max_keys_per_request)) {
        if (part.size() < 2) {
          Skip(part, skip::kSplitOff, &plan);
          continue;
        }
        FuseGroup group;
        group.send_device = key.route.send_device;
        group.recv_device = key.route.recv_device;
        group.depth = key.depth;
        group.frame = key.route.frame;
        for (const Receive* receive : part) {
          group.may_be_dead.push_back(liveness.MayBeDead(receive->node));
        }
        group.on_host = key.route.on_host;
        group.receives = part;
        plan.groups.push_back(std::move(group));
      }
    }
  }
  GroupDynamicReceives(view, dynamic, task_blocker, &plan);
  return plan;
}

}  // namespace tf_fuse
