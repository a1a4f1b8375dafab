// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/peers/ask_peer.h"

#include <utility>
#include <vector>

#include "base/limits.h"
#include "transport/message/receive_keys.h"
#include "transport/message/tensor_frame.h"
#include "transport/peers/recv_tensor_call.h"

namespace tf_fuse {

using tensorflow::Tensor;

void AskPeer(std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
             const std::string& task, tensorflow::Device* device,
             v1::FuseRecvTensorRequest question, int timeout_ms,
             std::function<void(const absl::Status&, const Tensor&)> done) {
  auto call =
      std::make_shared<RecvCall>(std::move(workers), task, /*step_id=*/0,
                                 device, tensorflow::AllocatorAttributes());
  const absl::Status status = call->Init();
  if (!status.ok()) {
    done(status, Tensor());
    return;
  }
  question.set_frame_version(frame::kVersion);
  call->request()->set_rendezvous_key(kFusedRendezvousKey);
  call->request()->mutable_transport_options()->PackFrom(question);
  call->SetTimeout(timeout_ms);
  RecvCall* raw_call = call.get();
  raw_call->Start([call, done = std::move(done)]() mutable {
    call->ReleaseWorker();
    done(call->status(), call->tensor());
    call.reset();  // The RPC layer still holds this closure.
  });
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
