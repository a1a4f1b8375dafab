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
#include "passes/fuse_recv_pass.h"
#include "transport/fuse_server.h"
#include "transport/fused_keys.h"
#include "transport/metrics.h"
#include "transport/recv_call.h"
#include "transport/tensor_frame.h"
#include "transport/watch.h"

namespace tf_fuse {

using tensorflow::Tensor;

std::string AnswerQuestion(v1::Question question) {
  switch (question) {
    case v1::QUESTION_METRICS:
      return Metrics::Get()->ToJson();
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
  auto call = std::make_shared<RecvCall>(std::move(workers), task,
                                         /*step_id=*/0, device,
                                         tensorflow::AllocatorAttributes());
  absl::Status status = call->Init();
  if (!status.ok()) return status;
  v1::FuseRecvTensorRequest request;
  request.set_frame_version(FrameVersion());
  request.set_question(question);
  call->request()->set_rendezvous_key(kFusedRendezvousKey);
  call->request()->mutable_transport_options()->PackFrom(request);
  call->SetTimeout(std::max(timeout_ms, 1));
  // The RPC's own deadline ends the wait.
  auto done = std::make_shared<absl::Notification>();
  RecvCall* raw_call = call.get();
  raw_call->Start([done] { done->Notify(); });
  done->WaitForNotification();
  call->ReleaseWorker();
  status = call->status();
  if (IsAnswerOfPlainPeer(status)) {
    return absl::UnimplementedError(
        absl::StrCat(task, " runs the protocol 'grpc', not 'grpc+fuse'"));
  }
  if (!status.ok()) return status;
  absl::StatusOr<std::string> bytes = ReadBytesResponse(call->tensor());
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
