// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The receiver's side of dynamic fusing: receives of one step that wait for the
// same peer at the same time share requests.

#ifndef TF_FUSE_CC_TRANSPORT_RECEIVER_DYNAMIC_RECV_H_
#define TF_FUSE_CC_TRANSPORT_RECEIVER_DYNAMIC_RECV_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/control_flow.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "transport/message/receive_keys.h"
#include "transport/receiver/fused_recv.h"
#include "transport/step/step_rendezvous.h"

namespace tf_fuse {

// No receive waits for another: a request that may wait at the sender holds up
// nothing that comes later, since that goes into a request of its own.
// Thread-safe. Owned by the step. A reference to the step is held as long as
// something waits.
class DynamicRecv {
 public:
  using Args = tensorflow::Rendezvous::Args;
  using Done = FusedDone;

  DynamicRecv(const tensorflow::WorkerEnv* env, int64_t step_id,
              StepRendezvous* step);
  ~DynamicRecv();

  // Receives the one tensor of `keys`. Calls `done` exactly once, on any
  // thread.
  void RecvAsync(std::shared_ptr<const FusedKeys> keys,
                 const tensorflow::FrameAndIter& frame_iter, const Args& args,
                 Done done);

 private:
  // What may share a request: the same devices, iteration, and way to be
  // cancelled.
  struct Route {
    std::string send_device;
    uint64_t incarnation = 0;
    std::string recv_device;
    uint64_t frame_id = 0;
    int64_t iteration = 0;
    tensorflow::CancellationManager* cancellation = nullptr;

    auto Tie() const {
      return std::tie(send_device, incarnation, recv_device, frame_id,
                      iteration, cancellation);
    }
    bool operator==(const Route& other) const { return Tie() == other.Tie(); }
    template <typename H>
    friend H AbslHashValue(H h, const Route& route) {
      return H::combine(std::move(h), route.send_device, route.incarnation,
                        route.recv_device, route.frame_id, route.iteration,
                        route.cancellation);
    }
  };
  struct Receive;
  using Receives = std::vector<Receive>;
  // Receives that the sender knows by the request that asked for them first;
  // request_id is 0 for those that it does not know.
  struct Batch;
  struct Request;
  struct Queue;

  static std::vector<Batch> SplitBatches(std::vector<Batch> batches);
  void ScheduleFlush(const Route& route);
  // Sends what is queued, until nothing is.
  void Flush(const Route& route);
  std::vector<std::shared_ptr<Request>> MakeRequests(
      const Route& route, std::vector<Batch> batches);
  void Send(const std::shared_ptr<Request>& request);
  void OnAnswer(Request* request, const absl::Status& status,
                const tensorflow::Tensor& frame, int64_t request_id);
  void OnFrame(Request* request, const tensorflow::Tensor& frame,
               int64_t request_id);
  // Puts batches back and asks for them, together with what has come since.
  void AskAgain(const Route& route, std::vector<Batch> batches);
  static void Fail(Receive* receive, const absl::Status& status);

  const tensorflow::WorkerEnv* const env_;
  const int64_t step_id_;
  StepRendezvous* const step_;
  absl::Mutex mu_;
  absl::flat_hash_map<Route, std::unique_ptr<Queue>> queues_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_RECEIVER_DYNAMIC_RECV_H_
