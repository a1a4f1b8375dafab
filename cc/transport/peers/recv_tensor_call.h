// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One RecvTensor request of our rendezvous, fused or single: by gRPC, or by a
// data channel.

#ifndef TF_FUSE_CC_TRANSPORT_PEERS_RECV_TENSOR_CALL_H_
#define TF_FUSE_CC_TRANSPORT_PEERS_RECV_TENSOR_CALL_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/tensor_coding.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "transport/peers/peer_call.h"

namespace tf_fuse {

// Abort and cancellation reach the RPC in whatever order they race with
// Start(): the status is recorded first, and Start() looks at it again after
// the RPC has registered how it can be cancelled.
class RecvCall : public tensorflow::BaseRecvTensorCall {
 public:
  // `worker_cache` stays alive until the call ends, even if the session that
  // made it goes away meanwhile.
  RecvCall(std::shared_ptr<tensorflow::WorkerCacheInterface> worker_cache,
           std::string task, int64_t step_id, tensorflow::DeviceBase* device,
           const tensorflow::AllocatorAttributes& alloc_attrs);
  ~RecvCall() override;

  // Errors: Internal when the task is not part of the cluster.
  absl::Status Init();

  tensorflow::RecvTensorRequest* request() { return &request_; }

  // The RPC fails with DeadlineExceeded after `ms` milliseconds; 0 is never.
  void SetTimeout(int64_t ms) { options_.SetTimeout(ms); }

  // Lets it go by a data channel, if that can be. `method` is that of a frame,
  // which is then in the memory of the host, or of a tensor. An answer of more
  // than `max_bytes` is an error.
  void UseChannel(PeerCalls peer, v1::CallMethod method, uint64_t max_bytes);

  void Start(std::function<void()> recv_done) override;
  void StartAbort(const absl::Status& status) override;
  absl::Status status() const override;

  // Gives the worker back to its cache; idempotent.
  void ReleaseWorker();

  const std::shared_ptr<tensorflow::WorkerCacheInterface>& worker_cache()
      const {
    return worker_cache_;
  }

  const tensorflow::Tensor& tensor() const {
    return frame_.has_value() ? *frame_ : response_.tensor();
  }
  bool is_dead() const { return response_.metadata().is_dead(); }
  // Whether it went by the data channel.
  bool by_channel() const { return by_channel_; }

 private:
  // False if nothing was sent: then `finish_one` is not called.
  bool StartByChannel(const std::function<void()>& finish_one);
  void TakeAnswer(const tensorflow::Tensor& answer);
  void Fail(const absl::Status& status);

  const std::shared_ptr<tensorflow::WorkerCacheInterface> worker_cache_;
  const std::string task_;
  tensorflow::DeviceBase* const device_;
  const tensorflow::AllocatorAttributes alloc_attrs_;
  tensorflow::WorkerInterface* worker_ = nullptr;
  tensorflow::CallOptions options_;
  tensorflow::RecvTensorRequest request_;
  tensorflow::TensorResponse response_;
  PeerCalls peer_;
  v1::CallMethod method_ = v1::CALL_METHOD_NONE;
  uint64_t max_bytes_ = 0;
  bool by_channel_ = false;
  std::optional<tensorflow::Tensor> frame_;  // By the channel.

  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_PEERS_RECV_TENSOR_CALL_H_
