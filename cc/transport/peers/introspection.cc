// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/peers/introspection.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "base/metrics.h"
#include "base/recent_reports.h"
#include "channel/chunk_server.h"
#include "channel/peer_card.h"
#include "transport/message/receive_keys.h"
#include "transport/peers/ask_peer.h"
#include "transport/peers/cluster.h"
#include "transport/peers/peer_channels.h"
#include "transport/watch/watch.h"
#include "update/update_counters.h"

namespace tf_fuse {

using tensorflow::Tensor;

namespace {

v1::PeerCard OwnCard(uint64_t call_token) {
  v1::PeerCard card;
  PeerChannels::Get()->Want();  // The task that asks receives fused.
  if (!AllowedPaths().shared_memory && !AllowedPaths().tcp) return card;
  card.set_version(kChannelVersion);
  card.set_call_token(call_token);
  FillInDataPaths(OwnHost(), &card);
  return card;
}

// {..., "server_updates": {...}}
std::string Counters() {
  std::string counters = Metrics::Get()->ToJson();
  counters.pop_back();
  return absl::StrCat(
      counters, ", \"server_updates\": ", UpdateLog::Get()->ToJson(), "}");
}

}  // namespace

std::string AnswerQuestion(v1::Question question, uint64_t call_token) {
  switch (question) {
    case v1::QUESTION_METRICS:
      return Counters();
    case v1::QUESTION_REPORTS: {
      v1::FuseReports reports;
      for (v1::FuseReport& report : RecentReports()) {
        *reports.add_reports() = std::move(report);
      }
      return reports.SerializeAsString();
    }
    case v1::QUESTION_WAITING:
      return Watch::Get()->Describe().SerializeAsString();
    case v1::QUESTION_TASKS:
      return absl::StrJoin(LocalTasks(), "\n");
    case v1::QUESTION_CARD:
      return OwnCard(call_token).SerializeAsString();
    default:
      return "";
  }
}

absl::StatusOr<std::string> AskTask(const std::string& task,
                                    v1::Question question, int timeout_ms) {
  if (LocalTasks().count(task) > 0) return AnswerQuestion(question);
  tensorflow::Device* device = nullptr;
  auto workers = ClusterWorkers(&device);
  if (workers == nullptr) {
    return absl::FailedPreconditionError(
        "this process runs no server of the protocol 'grpc+fuse' that is part "
        "of a cluster");
  }
  v1::FuseRecvTensorRequest request;
  request.set_question(question);
  absl::Status status;
  Tensor frame;
  absl::Notification answered;
  AskPeer(std::move(workers), task, device, std::move(request),
          std::max(timeout_ms, 1),
          [&](const absl::Status& answer_status, const Tensor& answer) {
            status = answer_status;
            frame = answer;
            answered.Notify();
          });
  answered.WaitForNotification();  // The RPC's own deadline ends it.
  if (IsAnswerOfPlainPeer(status)) {
    return absl::UnimplementedError(
        absl::StrCat(task, " runs the protocol 'grpc', not 'grpc+fuse'"));
  }
  if (!status.ok()) return status;
  absl::StatusOr<std::string> bytes = ReadBytesResponse(frame);
  if (!bytes.ok()) {
    return absl::UnimplementedError(absl::StrCat(
        "the version of tf_fuse on ", task, " does not answer this"));
  }
  return bytes;
}

}  // namespace tf_fuse
