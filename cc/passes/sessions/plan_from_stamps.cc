// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/sessions/plan_from_stamps.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "passes/fuse_recv/dynamic_groups.h"
#include "passes/fuse_recv/pipeline.h"
#include "passes/fuse_recv/recv_analysis.h"
#include "passes/fuse_recv/recv_blockers.h"
#include "passes/sessions/receive_stamp.h"
#include "passes/view/liveness.h"
#include "passes/view/partitioner_names.h"

namespace tf_fuse {

namespace {

using Decision = v1::ReceiveStamp::Input;

class StampReader {
 public:
  explicit StampReader(const PartitionView& view) : view_(view), uses_(view) {}

  // What the master decided; a decision with the reason kNotStamped or
  // kStampVersion if the stamps do not say it.
  Decision Read(const Receive& receive) {
    const std::string source = SourceOfTensorName(receive.tensor_name);
    std::optional<Decision> common;
    for (const ReceiveUse& use : uses_.Find(receive, source)) {
      const std::optional<v1::ReceiveStamp>& stamp = StampOf(use.node);
      if (!stamp.has_value()) return LeftAlone(skip::kNotStamped);
      if (stamp->version() != kStampVersion) {
        return LeftAlone(skip::kStampVersion);
      }
      const Decision* decision = FindInput(*stamp, use.input, source);
      if (decision == nullptr ||
          (common.has_value() && !AreEqual(*common, *decision))) {
        return LeftAlone(skip::kNotStamped);
      }
      common = *decision;
    }
    if (!common.has_value() || !IsValid(*common)) {
      return LeftAlone(skip::kNotStamped);
    }
    return *common;
  }

 private:
  static Decision LeftAlone(const char* reason) {
    Decision decision;
    decision.set_reason(reason);
    return decision;
  }
  // A newer master may know reasons that this version does not.
  static bool IsValid(const Decision& decision) {
    const std::string& reason = decision.reason();
    if (decision.dynamic()) return decision.group() == 0 && reason.empty();
    if (decision.group() > 0) return reason.empty();
    return !reason.empty() && reason.size() <= 40 &&
           std::all_of(reason.begin(), reason.end(), [](char c) {
             return (c >= 'a' && c <= 'z') || c == '_';
           });
  }
  static bool AreEqual(const Decision& a, const Decision& b) {
    return a.group() == b.group() && a.reason() == b.reason() &&
           a.depth() == b.depth() && a.may_be_dead() == b.may_be_dead() &&
           a.dynamic() == b.dynamic() && a.live() == b.live();
  }
  static const Decision* FindInput(const v1::ReceiveStamp& stamp, int index,
                                   const std::string& source) {
    for (const Decision& input : stamp.inputs()) {
      if (input.index() == index && input.source() == source) return &input;
    }
    return nullptr;
  }
  const std::optional<v1::ReceiveStamp>& StampOf(NodeId id) {
    auto it = stamps_.find(id);
    if (it == stamps_.end()) {
      it = stamps_.emplace(id, ReadStamp(*view_.node(id))).first;
    }
    return it->second;
  }

  const PartitionView& view_;
  const ReceiveUses uses_;
  std::map<NodeId, std::optional<v1::ReceiveStamp>> stamps_;
};

// The master's number of the group, and what a _FuseRecv has only one of.
using StampedKey = std::tuple<std::string, std::string, int, int64_t, int,
                              std::string, std::vector<NodeId>, bool>;

struct Member {
  const Receive* receive;
  bool may_be_dead;
};

// What the master did not decide, or decided in a way that is not known here:
// such receives are fused dynamically, which needs no other part of the graph.
// Whether they are live is not known.
class UndecidedReceives {
 public:
  UndecidedReceives(const PartitionView& view, const AnalysisOptions& options)
      : view_(view), options_(options) {}

  void Add(const Receive& receive, const std::string& reason,
           std::vector<DynamicReceive>* dynamic, FusePlan* plan) {
    const bool cyclic = view_.topological_order().empty();
    if (!cyclic && !liveness_.has_value()) liveness_.emplace(view_);
    const std::string blocker =
        cyclic ? skip::kCyclicGraph
               : FindBlocker(view_, *liveness_, receive, options_);
    if (!blocker.empty()) {
      plan->skipped.push_back({&receive, blocker});
      return;
    }
    dynamic->push_back({&receive, liveness_->MayBeDead(receive.node), reason});
  }

 private:
  const PartitionView& view_;
  const AnalysisOptions& options_;
  std::optional<Liveness> liveness_;  // Made when it is needed.
};

// Whether the master asks for groups of operations. (A task that receives
// nothing has no stamp, and keeps its operations.)
bool FusesOperations(const PartitionView& view) {
  for (NodeId id = 0; id < view.size(); ++id) {
    const auto stamp = ReadStamp(*view.node(id));
    if (stamp.has_value()) {
      return stamp->version() == kStampVersion && stamp->fuse_operations();
    }
  }
  return false;
}

}  // namespace

bool HasStamps(const PartitionGraphs& partitions) {
  return std::any_of(
      partitions.begin(), partitions.end(), [](const auto& partition) {
        const auto nodes = partition.second->op_nodes();
        return std::any_of(
            nodes.begin(), nodes.end(),
            [](const tensorflow::Node* node) { return HasStamp(*node); });
      });
}

FusePlan PlanFromStamps(const PartitionView& view,
                        const AnalysisOptions& options) {
  FusePlan plan;
  plan.in_session = true;
  StampReader reader(view);
  UndecidedReceives undecided(view, options);
  std::vector<DynamicReceive> dynamic;
  std::map<StampedKey, std::vector<Member>> candidates;
  for (const Receive& receive : view.receives()) {
    if (receive.same_task) {
      ++plan.local_receives;
      continue;
    }
    // The graph that was stamped has no edges for feeds and fetches.
    if (receive.client_terminated) {
      plan.skipped.push_back({&receive, skip::kClientTerminated});
      continue;
    }
    const Decision decision = reader.Read(receive);
    if (decision.live()) plan.live_receives.insert(receive.node);
    const std::string& reason = decision.reason();
    if (reason == skip::kNotStamped || reason == skip::kStampVersion) {
      undecided.Add(receive, reason, &dynamic, &plan);
      continue;
    }
    if (decision.group() == 0 && !decision.dynamic()) {
      plan.skipped.push_back({&receive, decision.reason()});
      continue;
    }
    // Limits are this task's, which the master does not know.
    if (IsKeyTooLong(receive, options)) {
      plan.skipped.push_back({&receive, skip::kKeyTooLong});
      continue;
    }
    if (decision.dynamic()) {
      dynamic.push_back({&receive, decision.may_be_dead(), skip::kAlone});
      continue;
    }
    candidates[{receive.send_device, receive.recv_device, decision.depth(),
                receive.send_device_incarnation, decision.group(),
                view.frame(receive.node), FindTriggers(view, receive),
                receive.on_host}]
        .push_back({&receive, decision.may_be_dead()});
  }
  std::map<std::string, std::string> blockers;
  const auto task_blocker = [&](const std::string& task) {
    auto it = blockers.find(task);
    if (it == blockers.end()) {
      const std::string reason =
          options.task_blocker ? options.task_blocker(task) : "";
      it = blockers.emplace(task, reason).first;
    }
    return it->second;
  };
  for (auto& [key, members] : candidates) {
    const auto& [send_device, recv_device, depth, incarnation, number, frame,
                 triggers, on_host] = key;
    std::string reason = members.size() < 2 ? skip::kAlone : "";
    if (reason.empty()) reason = task_blocker(TaskOfDevice(recv_device));
    if (!reason.empty()) {
      for (const Member& member : members) {
        plan.skipped.push_back({member.receive, reason});
      }
      continue;
    }
    std::sort(members.begin(), members.end(),
              [](const Member& a, const Member& b) {
                return a.receive->tensor_name < b.receive->tensor_name;
              });
    for (const std::vector<Member>& part :
         SplitEvenly(members, options.max_keys_per_request)) {
      if (part.size() < 2) {
        plan.skipped.push_back({part[0].receive, skip::kSplitOff});
        continue;
      }
      FuseGroup group;
      group.send_device = send_device;
      group.recv_device = recv_device;
      group.depth = depth;
      group.frame = frame;
      group.on_host = on_host;
      for (const Member& member : part) {
        group.receives.push_back(member.receive);
        group.may_be_dead.push_back(member.may_be_dead);
      }
      plan.groups.push_back(std::move(group));
    }
  }
  GroupDynamicReceives(view, dynamic, task_blocker, &plan);
  return plan;
}

absl::Status FuseStampedReceives(const PartitionGraphs& partitions,
                                 const AnalysisOptions& options,
                                 v1::FuseReport* report) {
  auto view = PartitionView::Build(partitions);
  if (!view.ok()) return view.status();
  FusePlan plan = PlanFromStamps(*view, options);
  // The master has seen more; but what is seen here must be right as well.
  VerifyPlan(*view, options, &plan);
  if (FusesOperations(*view)) {
    PlanAndVerifyOperations(
        *view, options, [](const std::string& /*this_task*/) { return true; },
        &plan);
  }
  return ApplyPlan(*view, plan, partitions, report);
}

}  // namespace tf_fuse
