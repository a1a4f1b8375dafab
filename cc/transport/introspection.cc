// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/introspection.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "collectives/chunk_server.h"
#include "collectives/peer_card.h"
#include "passes/fuse_recv_pass.h"
#include "transport/ask_peer.h"
#include "transport/fuse_server.h"
#include "transport/fused_keys.h"
#include "transport/metrics.h"
#include "transport/tensor_frame.h"
#include "transport/watch.h"
#include "update/update_log.h"

namespace tf_fuse {

using tensorflow::Tensor;

namespace {

v1::PeerCard OwnCard() {
  v1::PeerCard card;
  if (!AllowedPaths().shared_memory && !AllowedPaths().tcp) return card;
  card.set_version(kChannelVersion);
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

std::string AnswerQuestion(v1::Question question) {
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
      return OwnCard().SerializeAsString();
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

absl::StatusOr<std::string> ReadBytesResponse(const Tensor& frame) {
  std::vector<Slot> slots;
  const absl::Status status = UnpackFrame(frame, {tensorflow::DT_UINT8}, {},
                                          &slots, nullptr, kLimitOfFrameBytes);
  if (!status.ok()) return status;
  if (slots[0].is_dead || slots[0].beside) {
    return absl::DataLossError("the answer holds no bytes");
  }
  const auto bytes = slots[0].tensor.tensor_data();
  return std::string(bytes.data(), bytes.size());
}

}  // namespace tf_fuse
