// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv_pass.h"

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "passes/fuse_options.h"
#include "passes/fuse_recv_rewrite.h"
#include "passes/fuse_recv_verifier.h"
#include "passes/fuse_send_analysis.h"
#include "passes/stamped_plan.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/public/session_options.h"
#include "transport/features.h"
#include "transport/fuse_server.h"
#include "transport/metrics.h"
#include "transport/tensor_frame.h"

namespace tf_fuse {

namespace {

class ReportLog {
 public:
  void Add(v1::FuseReport report) {
    std::lock_guard<std::mutex> lock(mu_);
    reports_.push_back(std::move(report));
    if (reports_.size() > kMaxReports) reports_.pop_front();
  }
  std::vector<v1::FuseReport> Get() const {
    std::lock_guard<std::mutex> lock(mu_);
    return {reports_.begin(), reports_.end()};
  }
  static ReportLog* Global() {
    static ReportLog* log = new ReportLog;
    return log;
  }

 private:
  mutable std::mutex mu_;
  std::deque<v1::FuseReport> reports_;
};

// A worker that was sent its partition as a function runs this pass on it once
// more. Whoever sent it has seen the whole graph, and has decided.
bool WasSeenBefore(const PartitionGraphs& partitions) {
  for (const auto& [name, graph] : partitions) {
    for (const tensorflow::Node* node : graph->op_nodes()) {
      if (node->type_string() == "_FuseRecv" ||
          node->type_string() == "_HostFuseRecv" ||
          node->type_string() == "_FuseSend" ||
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

// What the tasks of one graph can do; each is asked once.
class Peers {
 public:
  std::string RecvBlocker(const std::string& task) {
    switch (Get(task).state) {
      case PeerState::kFused:
        return "";
      case PeerState::kPlain:
        return skip::kPeerPlain;
      case PeerState::kUnreachable:
        return skip::kPeerUnreachable;
    }
    return skip::kPeerUnreachable;
  }

  std::string PackBlocker(const std::string& send_task,
                          const std::string& recv_task) {
    const Peer& sender = Get(send_task);
    switch (sender.state) {
      case PeerState::kFused:
        if ((sender.features.bits & kFeaturePackedSends) == 0) {
          return unpacked::kSenderOlder;
        }
        return (Get(recv_task).features.bits & kFeaturePackedSends) == 0
                   ? unpacked::kReceiverOlder
                   : "";
      case PeerState::kPlain:
        return unpacked::kSenderPlain;
      case PeerState::kUnreachable:
        return unpacked::kSenderUnreachable;
    }
    return unpacked::kSenderUnreachable;
  }

  ReadableFrames FramesOf(const std::string& task) {
    const Features& features = Get(task).features;
    return {features.frame_version, features.max_frame_bytes};
  }

 private:
  const Peer& Get(const std::string& task) {
    auto it = peers_.find(task);
    if (it == peers_.end()) {
      it = peers_.emplace(task, ProbePeers({task})[task]).first;
    }
    return it->second;
  }

  std::map<std::string, Peer> peers_;
};

void WarnOnceThatProtocolIsPlain() {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  LOG(WARNING) << "tf_fuse: do_fuse_recv is on, but this task does not run the "
                  "protocol 'grpc+fuse', so its functions stay as they are. "
                  "Start its server with protocol='grpc+fuse' (rpc_layer of a "
                  "cluster resolver).";
}

void Verify(const PartitionView& view, const AnalysisOptions& options,
            FusePlan* plan) {
  const int changes = DropGroupsThatCloseCycles(view, plan);
  if (changes > 0 && options.grouping == Grouping::kDepth &&
      !options.pack_awaited_sends) {
    LOG(ERROR) << "tf_fuse: " << changes
               << " groups by depth would have closed a cycle, or spanned two "
                  "loops, and were left alone. The results are right; please "
                  "report this.";
  }
}

void CountReport(const v1::FuseReport& report) {
  Metrics* metrics = Metrics::Get();
  metrics->functions.fetch_add(1);
  metrics->groups.fetch_add(report.groups_size());
  for (const auto& group : report.groups()) {
    metrics->fused_receives.fetch_add(group.slots_size());
    if (group.packed_by_sender()) metrics->packed_groups.fetch_add(1);
  }
  std::map<std::string, int64_t> reasons;
  for (const auto& skipped : report.skips()) ++reasons[skipped.reason()];
  for (const auto& [reason, count] : reasons) {
    metrics->AddSkipped(reason, count);
  }
}

}  // namespace

FusePlan PlanAndVerify(const PartitionView& view,
                       const AnalysisOptions& options) {
  FusePlan plan = PlanFusedReceives(view, options);
  if (options.pack_sends) MarkGroupsToPack(view, options, &plan);
  Verify(view, options, &plan);
  return plan;
}

absl::Status FuseReceives(const PartitionGraphs& partitions,
                          const AnalysisOptions& options,
                          v1::FuseReport* report) {
  auto view = PartitionView::Build(partitions);
  if (!view.ok()) return view.status();
  const FusePlan plan = PlanAndVerify(*view, options);
  report->set_partitions(static_cast<int>(partitions.size()));
  return ApplyFusePlan(*view, plan, partitions, report);
}

absl::Status FuseStampedReceives(const PartitionGraphs& partitions,
                                 const AnalysisOptions& options,
                                 v1::FuseReport* report) {
  auto view = PartitionView::Build(partitions);
  if (!view.ok()) return view.status();
  FusePlan plan = PlanFromStamps(*view, options);
  // None is packed: this says why.
  if (options.pack_sends) MarkGroupsToPack(*view, options, &plan);
  // The master has seen more; but what is seen here must be right as well.
  Verify(*view, options, &plan);
  report->set_partitions(static_cast<int>(partitions.size()));
  return ApplyFusePlan(*view, plan, partitions, report);
}

std::vector<v1::FuseReport> RecentReports() {
  return ReportLog::Global()->Get();
}

AnalysisOptions ChooseAnalysis(const FuseOptions& options) {
  AnalysisOptions analysis;
  analysis.fuse_gpu = options.do_fuse_gpu;
  analysis.splitting = Splitting::kCost;
  if (!options.grouping.empty() &&
      !ParseSplitting(options.grouping, &analysis.splitting)) {
    // A newer coordinator may know more.
    LOG(WARNING) << "tf_fuse: fuse_grouping is '" << options.grouping
                 << "', this task knows 'level', 'consumer', 'cost' and "
                    "'dynamic'; 'cost' is used.";
  }
  if (analysis.splitting != Splitting::kCost) return analysis;
  analysis.hosts = ClusterHosts();
  CostModel* model = &analysis.cost_model;
  analysis.max_packed_bytes = static_cast<double>(MaxPackedTensorBytes());
  model->rpc_us =
      options.rpc_us > 0 ? options.rpc_us : MeasuredRpcMicros(model->rpc_us);
  if (options.gigabytes_per_s > 0) {
    model->bytes_per_us = 1000 * options.gigabytes_per_s;
  }
  return analysis;
}

namespace {

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
      // A worker of a session is not told the options; the master of a session
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
    AnalysisOptions analysis = ChooseAnalysis(fuse_options);
    analysis.pack_sends = fuse_options.do_pack_sends;
    Fuse(&FuseReceives, std::move(analysis), partitions);
    return absl::OkStatus();
  }

 private:
  static void Fuse(decltype(&FuseReceives) fuse, AnalysisOptions analysis,
                   const PartitionGraphs& partitions) {
    Peers peers;
    analysis.task_blocker = [&peers](const std::string& task) {
      return peers.RecvBlocker(task);
    };
    analysis.pack_blocker = [&peers](const std::string& send_task,
                                     const std::string& recv_task) {
      return peers.PackBlocker(send_task, recv_task);
    };
    analysis.readable_frames = [&peers](const std::string& task) {
      return peers.FramesOf(task);
    };
    if (!HasFuseServer()) {
      WarnOnceThatProtocolIsPlain();
      analysis.task_blocker = [](const std::string&) {
        return std::string(skip::kNoFuseServer);
      };
    }
    v1::FuseReport report;
    const absl::Status status = fuse(partitions, analysis, &report);
    if (!status.ok()) {
      // A graph that we cannot read is run as it is.
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
    ReportLog::Global()->Add(std::move(report));
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_PARTITIONING,
                      10, FuseRecvPass);

}  // namespace

}  // namespace tf_fuse
