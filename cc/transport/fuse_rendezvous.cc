// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/fuse_rendezvous.h"

#include <utility>

#include "base/metrics.h"
#include "transport/message/failed_slots.h"
#include "transport/peers/plain_peers.h"
#include "transport/receiver/dynamic_recv.h"
#include "transport/sender/partial_sends.h"

namespace tf_fuse {

FuseRendezvous::~FuseRendezvous() = default;

void FuseRendezvous::RecvFusedAsync(std::shared_ptr<const FusedKeys> keys,
                                    const tensorflow::FrameAndIter& frame_iter,
                                    const Args& args, FusedDone done) {
  RecvFused(this, std::move(keys), frame_iter, args, std::move(done));
}

void FuseRendezvous::RecvDynamicAsync(
    std::shared_ptr<const FusedKeys> keys,
    const tensorflow::FrameAndIter& frame_iter, const Args& args,
    FusedDone done) {
  if (PlainPeers::Get()->Contains(keys->send_task,
                                  keys->send_device_incarnation)) {
    Metrics::Get()->fallbacks.fetch_add(1, std::memory_order_relaxed);
    RecvOneByOne(this, std::move(keys), frame_iter, args, std::move(done));
    return;
  }
  DynamicRecv* dynamic_recv;
  {
    absl::MutexLock lock(&parts_mu_);
    if (dynamic_recv_ == nullptr) {
      dynamic_recv_ = std::make_unique<DynamicRecv>(env_, step_id_, this);
    }
    dynamic_recv = dynamic_recv_.get();
  }
  dynamic_recv->RecvAsync(std::move(keys), frame_iter, args, std::move(done));
}

std::shared_ptr<PartialSends> FuseRendezvous::partial_sends() {
  absl::MutexLock lock(&parts_mu_);
  if (partial_sends_ == nullptr) {
    partial_sends_ =
        std::make_shared<PartialSends>(this, AsOfAbortedStep(abort_status()));
  }
  return partial_sends_;
}

void FuseRendezvous::AbortPartialSends(const absl::Status& status) {
  std::shared_ptr<PartialSends> partial_sends;
  {
    absl::MutexLock lock(&parts_mu_);
    partial_sends = partial_sends_;
  }
  if (partial_sends != nullptr) partial_sends->Abort(AsOfAbortedStep(status));
}

FuseRendezvousMgr::FuseRendezvousMgr(const tensorflow::WorkerEnv* env)
    : BaseRendezvousMgr(env) {}

tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous>
FuseRendezvousMgr::Create(int64_t step_id, const tensorflow::WorkerEnv* env) {
  return tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous>(
      new FuseRendezvous(env, step_id));
}

}  // namespace tf_fuse
