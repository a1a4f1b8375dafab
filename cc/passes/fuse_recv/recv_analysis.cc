// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv/recv_analysis.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "passes/fuse_recv/dynamic_groups.h"
#include "passes/fuse_recv/recv_blockers.h"
#include "passes/view/blocking_ops.h"
#include "passes/view/liveness.h"
#include "passes/view/partial_run_classes.h"
#include "passes/view/receive_depth.h"
#include "passes/view/ref_reads.h"

namespace tf_fuse {

using tensorflow::Node;

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

// The first nodes after `start` that do not pass `through`. Empty if one that
// does is used by nothing.
std::vector<NodeId> Reached(const PartitionView& view,
                            const Consumers& consumers, NodeId start,
                            bool through(const Node&)) {
  std::vector<NodeId> found;
  std::vector<NodeId> pending = {start};
  std::set<NodeId> seen;
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    if (consumers[id].empty()) return {};
    for (const NodeId consumer : consumers[id]) {
      if (!seen.insert(consumer).second) continue;
      (through(*view.node(consumer)) ? pending : found).push_back(consumer);
    }
  }
  return found;
}

// The nodes that use a value, those that only forward it looked through.
std::vector<NodeId> FinalConsumers(const PartitionView& view,
                                   const Consumers& consumers, NodeId start) {
  return Reached(view, consumers, start, OnlyForwards);
}

// Computes its outputs of its inputs and does nothing else, whenever it runs.
bool OnlyComputes(const Node& node) {
  return node.IsOp() && !node.op_def().is_stateful() && !node.IsControlFlow() &&
         !node.IsRetval() && !MayBlock(node);
}

// The first nodes that do more than compute with what comes from `start`. Empty
// if a value ends in a node that nothing uses: that may fail, too.
std::vector<NodeId> FirstEffects(const PartitionView& view,
                                 const Consumers& consumers, NodeId start) {
  return Reached(view, consumers, start, OnlyComputes);
}

// Whether nothing of `uses` would wait for more than it does now, if `receive`
// came with the group of this key.
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

// Whether the step takes no longer, but for a call, if what follows `receive`
// waits for all of `group`.
bool MayWait(const std::map<NodeId, ReceiveEstimate>& estimates,
             const Receive& receive, const std::vector<const Receive*>& group,
             const CostModel& model) {
  double tail_us = 0;
  for (const Receive* other : group) {
    tail_us = std::max(tail_us, estimates.at(other->node).tail_us);
  }
  return estimates.at(receive.node).tail_us <= tail_us + model.rpc_us;
}

// Lets receives of one group join the next deeper group that all of them may: a
// call less. Without estimates only one that is alone does: many bytes should
// not wait for what follows. With them, what only computes may come to wait,
// and SplitByEstimates() divides groups again where that pays.
void JoinDeeperGroups(const PartitionView& view, const Ancestry& ancestry,
                      const Consumers& consumers,
                      const std::map<NodeId, ReceiveEstimate>& estimates,
                      const CostModel& model, Candidates* candidates) {
  // In the order of the keys: deeper groups of the same route come later.
  for (auto it = candidates->begin(); it != candidates->end();) {
    const std::vector<const Receive*>& receives = it->second;
    if (receives.size() > 1 && estimates.empty()) {
      ++it;
      continue;
    }
    std::vector<std::vector<NodeId>> uses;
    std::vector<std::vector<NodeId>> effects;
    for (const Receive* receive : receives) {
      uses.push_back(FinalConsumers(view, consumers, receive->node));
      if (estimates.empty()) continue;
      effects.push_back(FirstEffects(view, consumers, receive->node));
    }
    const auto may_all_join = [&](const Candidates::value_type& group) {
      for (size_t i = 0; i < receives.size(); ++i) {
        const Receive& receive = *receives[i];
        if (MayJoin(view, ancestry, receive, uses[i], group.first)) continue;
        if (estimates.empty() ||
            !MayJoin(view, ancestry, receive, effects[i], group.first) ||
            !MayWait(estimates, receive, group.second, model)) {
          return false;
        }
      }
      return true;
    };
    auto other = std::next(it);
    while (other != candidates->end() &&
           other->first.route == it->first.route &&
           (other->first.depth == it->first.depth ||
            other->first.feeds != it->first.feeds || !may_all_join(*other))) {
      ++other;
    }
    if (other == candidates->end() ||
        !(other->first.route == it->first.route)) {
      ++it;
      continue;
    }
    other->second.insert(other->second.end(), receives.begin(), receives.end());
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
  // On one host a transfer takes the cores that compute, and an early tensor
  // ends the step no earlier.
  if (options.ShareHost(TaskOfDevice(receives[0]->send_device),
                        TaskOfDevice(receives[0]->recv_device))) {
    if (small.empty()) return {};
    return {small};
  }
  std::vector<std::vector<const Receive*>> result;
  for (const auto& part : SplitByCost(arrivals, options.cost_model)) {
    result.emplace_back();
    for (const size_t i : part) result.back().push_back(small[i]);
  }
  return result;
}

}  // namespace

std::vector<NodeId> FindTriggers(const PartitionView& view,
                                 const Receive& receive) {
  std::set<NodeId> triggers;
  if (view.frame(receive.node).empty()) return {};
  for (const PartitionView::Edge& edge : view.in_edges(receive.node)) {
    if (edge.node != receive.send) triggers.insert(edge.node);
  }
  return {triggers.begin(), triggers.end()};
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
  if (options.splitting == Splitting::kCost) {
    plan.estimates = EstimateReceives(view, options.cost_model);
  }
  const Consumers consumers = FindConsumers(view);
  JoinDeeperGroups(view, ancestry, consumers, plan.estimates,
                   options.cost_model, &candidates);
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
