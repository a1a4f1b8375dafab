// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The rendezvous of the protocol "grpc+fuse": TensorFlow's own, plus a receive
// of many tensors in one RPC.

#ifndef TF_FUSE_CC_TRANSPORT_FUSE_RENDEZVOUS_H_
#define TF_FUSE_CC_TRANSPORT_FUSE_RENDEZVOUS_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/framework/control_flow.h"
#include "transport/message/receive_keys.h"
#include "transport/receiver/fused_recv.h"
#include "transport/step/step_rendezvous.h"

namespace tf_fuse {

class DynamicRecv;

class FuseRendezvous : public StepRendezvous {
 public:
  using StepRendezvous::StepRendezvous;

  // Receives all tensors of `keys` with one RPC, or one by one from a peer that
  // lacks the plugin. Calls `done` exactly once, on any thread.
  void RecvFusedAsync(std::shared_ptr<const FusedKeys> keys,
                      const tensorflow::FrameAndIter& frame_iter,
                      const Args& args, FusedDone done);

  // Receives the one tensor of `keys`. Receives that wait for the same task at
  // the same time share requests; none of them waits for another.
  void RecvDynamicAsync(std::shared_ptr<const FusedKeys> keys,
                        const tensorflow::FrameAndIter& frame_iter,
                        const Args& args, FusedDone done);

  std::shared_ptr<PartialSends> partial_sends() override;

 protected:
  void AbortPartialSends(const absl::Status& status) override;

 private:
  ~FuseRendezvous() override;

  // Made when they are needed first.
  absl::Mutex parts_mu_;
  std::unique_ptr<DynamicRecv> dynamic_recv_ ABSL_GUARDED_BY(parts_mu_);
  std::shared_ptr<PartialSends> partial_sends_ ABSL_GUARDED_BY(parts_mu_);
};

class FuseRendezvousMgr : public tensorflow::BaseRendezvousMgr {
 public:
  explicit FuseRendezvousMgr(const tensorflow::WorkerEnv* env);

 protected:
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(
      int64_t step_id, const tensorflow::WorkerEnv* env) override;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_FUSE_RENDEZVOUS_H_
