// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/ask_peer.h"

#include <utility>

#include "transport/fused_keys.h"
#include "transport/limits.h"
#include "transport/recv_call.h"

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
  question.set_frame_version(FrameVersion());
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

}  // namespace tf_fuse
