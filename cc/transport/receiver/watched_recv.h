// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What is known of a fused receive while it waits: the receiver's side.

#ifndef TF_FUSE_CC_TRANSPORT_RECEIVER_WATCHED_RECV_H_
#define TF_FUSE_CC_TRANSPORT_RECEIVER_WATCHED_RECV_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/metrics.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/tensor.h"
#include "transport/message/receive_keys.h"
#include "transport/watch/watch.h"

namespace tf_fuse {

// When it has waited for too long, it asks the sender which tensors are missing
// and logs the answer. Thread-safe.
class WatchedRecv : public Waiting,
                    public std::enable_shared_from_this<WatchedRecv> {
 public:
  // `keys` may be null where Keys() is overridden.
  WatchedRecv(const tensorflow::WorkerEnv* env, int64_t step_id,
              std::shared_ptr<const FusedKeys> keys);
  ~WatchedRecv() override;

  // From now on it is watched.
  void StartWatch();
  // All tensors were asked for with this request.
  void RequestSent(
      std::shared_ptr<tensorflow::WorkerCacheInterface> worker_cache,
      int64_t request_id);
  // These are asked for one by one; all others are here.
  void SinglesSent(const std::vector<size_t>& indices);
  void SingleArrived(size_t index, size_t bytes);
  // The frame is here. `waits_micros` is what the sender says of each tensor in
  // it; `arrived` names them, if these are not all that were asked for.
  void FrameArrived(size_t bytes, std::vector<int64_t> waits_micros,
                    std::shared_ptr<const FusedKeys> arrived = nullptr);
  // It waits no longer.
  void WatchEnded(absl::StatusCode code = absl::StatusCode::kOk);

  // Whether it is an event of a profile; fixed from the beginning.
  bool traced() const { return start_ns_ != 0; }

  void OnTick(uint64_t waited_micros) override;
  bool Describe(v1::WaitingReceive* out) override;
  int64_t awaited_request_id() override;

 protected:
  // The tensors that were asked for, in that order, and the two devices.
  virtual std::shared_ptr<const FusedKeys> Keys() { return keys_; }

 private:
  // gRPC would wait for ever for a host that lost power.
  void KeepAliveOnce();
  void AskSender(uint64_t waited_micros);
  void OnAnswer(uint64_t waited_micros, const absl::Status& status,
                const tensorflow::Tensor& frame);

  const tensorflow::WorkerEnv* const env_;
  const int64_t step_id_;
  const std::shared_ptr<const FusedKeys> keys_;
  const int64_t start_ns_;
  const Stopwatch stopwatch_;

  absl::Mutex watch_mu_;
  bool reported_ ABSL_GUARDED_BY(watch_mu_) = false;
  bool ended_ ABSL_GUARDED_BY(watch_mu_) = false;
  // Since the last request.
  bool is_kept_alive_ ABSL_GUARDED_BY(watch_mu_) = false;
  // Of the last request for all tensors.
  std::shared_ptr<tensorflow::WorkerCacheInterface> worker_cache_
      ABSL_GUARDED_BY(watch_mu_);
  int64_t request_id_ ABSL_GUARDED_BY(watch_mu_) = 0;
  // Empty unless tensors are fetched one by one.
  std::vector<bool> missing_ ABSL_GUARDED_BY(watch_mu_);
  // Of the event.
  int64_t bytes_ ABSL_GUARDED_BY(watch_mu_) = 0;
  std::vector<int64_t> waits_micros_ ABSL_GUARDED_BY(watch_mu_);
  std::shared_ptr<const FusedKeys> arrived_ ABSL_GUARDED_BY(watch_mu_);
  // Last: nobody looks at what is half destroyed.
  Watch::Place place_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_RECEIVER_WATCHED_RECV_H_
