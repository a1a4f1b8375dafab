// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The registered pass: finds out whether a graph is to be fused and what the
// tasks in it can do, runs fuse_recv/pipeline.h or its half in sessions, and
// counts and reports what was done.

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/metrics.h"
#include "base/recent_reports.h"
#include "passes/fuse_recv/options.h"
#include "passes/fuse_recv/pipeline.h"
#include "passes/fuse_recv/recv_rewrite.h"
#include "passes/sessions/plan_from_stamps.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/public/session_options.h"
#include "transport/peers/cluster.h"
#include "transport/peers/probe.h"

namespace tf_fuse {

namespace {

// A worker that was sent its partition as a function runs this pass on it once
// more. Whoever sent it has seen the whole graph, and has decided.
bool WasSeenBefore(const PartitionGraphs& partitions) {
  for (const auto& [name, graph] : partitions) {
    for (const tensorflow::Node* node : graph->op_nodes()) {
      if (node->type_string() == "_FuseRecv" ||
          node->type_string() == "_HostFuseRecv" ||
          node->attrs().Find(kSkipReasonAttr) != nullptr) {
        return true;
      }
    }
  }
  return false;
}

bool HasRemoteReceive(const PartitionGraphs& partitions) {
  for (const auto& [name, graph] : partitions) {
    for (const tensorflow::Node* node : graph->op_nodes()) {
      if (node->IsRecv()) return true;
    }
  }
  return false;
}

// The tasks of a graph that receive from others.
std::set<std::string> TasksThatReceive(const PartitionGraphs& partitions) {
  std::set<std::string> tasks;
  for (const auto& [name, graph] : partitions) {
    for (const tensorflow::Node* node : graph->op_nodes()) {
      std::string send_device;
      std::string recv_device;
      if (!node->IsRecv() ||
          !tensorflow::TryGetNodeAttr(node->attrs(), "send_device",
                                      &send_device) ||
          !tensorflow::TryGetNodeAttr(node->attrs(), "recv_device",
                                      &recv_device)) {
        continue;
      }
      const std::string receiver = TaskOfDevice(recv_device);
      if (TaskOfDevice(send_device) != receiver) tasks.insert(receiver);
    }
  }
  return tasks;
}

// What the tasks of one graph can do. All are asked at once, when one is
// needed: one that does not answer takes seconds, many of them no longer.
class Peers {
 public:
  explicit Peers(const PartitionGraphs& partitions) : partitions_(partitions) {}

  std::string RecvBlocker(const std::string& task) {
    switch (Get(task)) {
      case PeerState::kFused:
        return "";
      case PeerState::kPlain:
        return skip::kPeerPlain;
      case PeerState::kUnreachable:
        return skip::kPeerUnreachable;
    }
    return skip::kPeerUnreachable;
  }

 private:
  PeerState Get(const std::string& task) {
    auto it = peers_.find(task);
    if (it != peers_.end()) return it->second;
    std::set<std::string> tasks = {task};
    if (peers_.empty()) tasks.merge(TasksThatReceive(partitions_));
    for (auto& [name, state] : ProbePeers(tasks)) peers_.emplace(name, state);
    return peers_.at(task);
  }

  const PartitionGraphs& partitions_;
  std::map<std::string, PeerState> peers_;
};

void WarnOnceThatProtocolIsPlain() {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  LOG(WARNING)
      << "tf_fuse: do_fuse_recv is on, but this task does not run the protocol "
         "'grpc+fuse', so its functions stay unchanged. Start its server with "
         "protocol='grpc+fuse' (rpc_layer of a cluster resolver).";
}

void CountReport(const v1::FuseReport& report) {
  Metrics* metrics = Metrics::Get();
  metrics->functions.fetch_add(1);
  metrics->groups.fetch_add(report.groups_size());
  for (const auto& group : report.groups()) {
    metrics->fused_receives.fetch_add(group.slots_size());
  }
  std::map<std::string, int64_t> reasons;
  for (const auto& skipped : report.skips()) ++reasons[skipped.reason()];
  for (const auto& [reason, count] : reasons) {
    metrics->AddSkipped(reason, count);
  }
}

// Whether a graph that nobody stamped is to be fused all the same, dynamically:
// the task's environment says so.
bool IsForDynamic(const PartitionGraphs& partitions) {
  return FusesUnstampedGraphs() && !WasSeenBefore(partitions) &&
         HasRemoteReceive(partitions);
}

class FuseRecvPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.partition_graphs == nullptr) return absl::OkStatus();
    const PartitionGraphs& partitions = *options.partition_graphs;
    if (options.session_options == nullptr) {
      // A worker of a session does not get the options; the master of a session
      // that has do_fuse_recv on stamps the graph.
      if (HasStamps(partitions) || IsForDynamic(partitions)) {
        Fuse(&FuseStampedReceives, AnalysisOptions(), partitions);
      }
      return absl::OkStatus();
    }
    const FuseOptions fuse_options =
        ParseFuseOptions(options.session_options->config);
    if (!fuse_options.do_fuse_recv) return absl::OkStatus();
    if (WasSeenBefore(partitions) || !HasRemoteReceive(partitions)) {
      return absl::OkStatus();
    }
    Fuse(&FuseReceives, ChooseAnalysis(fuse_options), partitions);
    return absl::OkStatus();
  }

 private:
  static void Fuse(decltype(&FuseReceives) fuse, AnalysisOptions analysis,
                   const PartitionGraphs& partitions) {
    Peers peers(partitions);
    analysis.task_blocker = [&peers](const std::string& task) {
      return peers.RecvBlocker(task);
    };
    if (!HasFuseServer()) {
      // A program of one process needs no server.
      if (!TasksThatReceive(partitions).empty()) WarnOnceThatProtocolIsPlain();
      analysis.task_blocker = [](const std::string&) {
        return std::string(skip::kNoFuseServer);
      };
    }
    v1::FuseReport report;
    const absl::Status status = fuse(partitions, analysis, &report);
    if (!status.ok()) {
      // A graph that we cannot read runs unchanged.
      LOG(WARNING) << "tf_fuse: left the receives of "
                   << partitions.begin()->first << " and "
                   << partitions.size() - 1
                   << " more partitions alone: " << status;
      Metrics::Get()->AddSkipped("unreadable_graph", 1);
      return;
    }
    CountReport(report);
    VLOG(1) << "tf_fuse: " << report.groups_size() << " groups, "
            << report.skips_size() << " receives left";
    AddReport(std::move(report));
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_PARTITIONING,
                      10, FuseRecvPass);

}  // namespace

}  // namespace tf_fuse
