// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/receiver/fused_recv.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/metrics.h"
#include "tensorflow/core/platform/logging.h"
#include "transport/message/failed_slots.h"
#include "transport/peers/plain_peers.h"
#include "transport/receiver/watched_recv.h"

namespace tf_fuse {

using tensorflow::FrameAndIter;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

namespace {

// The state of one fused receive, shared by its RPCs.
struct FusedRecv : public WatchedRecv {
  FusedRecv(StepRendezvous* step, std::shared_ptr<const FusedKeys> keys,
            const FrameAndIter& frame_iter, const Rendezvous::Args& args,
            FusedDone done)
      : WatchedRecv(step->env(), step->step_id(), keys),
        step(step),
        keys(std::move(keys)),
        frame_iter(frame_iter),
        args(args),
        done(std::move(done)) {}

  StepRendezvous* const step;
  const std::shared_ptr<const FusedKeys> keys;
  const FrameAndIter frame_iter;
  const Rendezvous::Args args;
  const FusedDone done;
  std::vector<Slot> slots;
  // Of RecvSingles.
  std::atomic<size_t> remaining{0};
  absl::Mutex mu;
  absl::Status status ABSL_GUARDED_BY(mu);
  std::vector<size_t> failed ABSL_GUARDED_BY(mu);

  void Fail(const absl::Status& error, const std::vector<size_t>& indices) {
    Metrics::Get()->errors.fetch_add(1);
    WatchEnded(error.code());
    done(NameFailedTensors(error, *keys, indices), {});
  }
};

// Receives the slots that have no value yet, one RPC each, then finishes.
void RecvSingles(std::shared_ptr<FusedRecv> recv,
                 const std::vector<size_t>& indices) {
  recv->remaining = indices.size();
  recv->SinglesSent(indices);
  auto finish_one = [recv] {
    if (recv->remaining.fetch_sub(1) != 1) return;
    absl::Status status;
    std::vector<size_t> failed;
    {
      absl::MutexLock lock(&recv->mu);
      status = recv->status;
      failed = recv->failed;
    }
    if (status.ok()) {
      recv->WatchEnded();
      recv->done(status, std::move(recv->slots));
    } else {
      std::sort(failed.begin(), failed.end());
      recv->Fail(status, failed);
    }
  };
  for (const size_t index : indices) {
    Rendezvous::ParsedKey parsed;
    const absl::Status status =
        ParseSlotKey(*recv->keys, index, recv->frame_iter, &parsed);
    auto on_tensor = [recv, index, finish_one](
                         const absl::Status& status, const Rendezvous::Args&,
                         const Rendezvous::Args&, const Tensor& tensor,
                         bool is_dead) {
      recv->SingleArrived(index, tensor.TotalBytes());
      if (status.ok()) {
        Slot& slot = recv->slots[index];
        slot.tensor = tensor;
        slot.is_dead = is_dead;
        slot.beside = false;
      } else {
        absl::MutexLock lock(&recv->mu);
        recv->status.Update(status);
        recv->failed.push_back(index);
      }
      finish_one();
    };
    if (status.ok()) {
      recv->step->RecvFromRemoteAsync(parsed, recv->args, std::move(on_tensor));
    } else {
      on_tensor(status, Rendezvous::Args(), Rendezvous::Args(), Tensor(),
                false);
    }
  }
}

// Sends the request, the first time or again.
void SendRequest(std::shared_ptr<FusedRecv> recv);

void OnFrame(std::shared_ptr<FusedRecv> recv, const absl::Status& status,
             const Tensor& frame) {
  const FusedKeys& keys = *recv->keys;
  if (IsAnswerOfPlainPeer(status)) {
    PlainPeers::Get()->Insert(keys.send_task, keys.send_device_incarnation);
    Metrics::Get()->fallbacks.fetch_add(1, std::memory_order_relaxed);
    recv->slots.resize(keys.tensor_names.size());
    RecvSingles(std::move(recv), AllIndices(keys));
    return;
  }
  if (IsPostponed(status)) {
    SendRequest(std::move(recv));
    return;
  }
  if (!status.ok()) {
    recv->Fail(status, FailedIndices(status, keys.tensor_names.size()));
    return;
  }
  Metrics* metrics = Metrics::Get();
  metrics->fused_rpcs.fetch_add(1, std::memory_order_relaxed);
  metrics->tensors.fetch_add(keys.tensor_names.size(),
                             std::memory_order_relaxed);
  metrics->bytes.fetch_add(frame.TotalBytes(), std::memory_order_relaxed);
  std::vector<int64_t> waits_micros;
  const absl::Status unpacked =
      UnpackFrame(frame, keys.types, keys.copy_out, &recv->slots,
                  recv->traced() ? &waits_micros : nullptr);
  if (recv->traced()) {
    recv->FrameArrived(frame.TotalBytes(), std::move(waits_micros));
  }
  if (!unpacked.ok()) {
    recv->Fail(unpacked, AllIndices(keys));
    return;
  }
  std::vector<size_t> beside;
  for (size_t i = 0; i < recv->slots.size(); ++i) {
    if (recv->slots[i].beside) beside.push_back(i);
  }
  if (beside.empty()) {
    recv->WatchEnded();
    recv->done(absl::OkStatus(), std::move(recv->slots));
    return;
  }
  metrics->beside_tensors.fetch_add(beside.size(), std::memory_order_relaxed);
  RecvSingles(std::move(recv), beside);
}

void SendRequest(std::shared_ptr<FusedRecv> recv) {
  const FusedKeys& k = *recv->keys;
  google::protobuf::Any options;
  if (recv->frame_iter == FrameAndIter(0, 0) && !recv->traced()) {
    options.set_type_url(kFusedRequestTypeUrl);
    options.set_value(k.root_request);
  } else {
    options.PackFrom(BuildRequest(k, recv->frame_iter, recv->traced()));
  }
  recv->step->StartCall(
      {k.send_task, k.send_device_incarnation, k.recv_device, k.rendezvous_key,
       k.tensor_names.size()},
      recv->args, std::move(options),
      [recv](const absl::Status& status, const Tensor& frame,
             int64_t /*request_id*/) { OnFrame(recv, status, frame); },
      [recv](std::shared_ptr<tensorflow::WorkerCacheInterface> worker_cache,
             int64_t request_id) {
        recv->RequestSent(std::move(worker_cache), request_id);
      });
}

}  // namespace

void RecvFused(StepRendezvous* step, std::shared_ptr<const FusedKeys> keys,
               const FrameAndIter& frame_iter, const Rendezvous::Args& args,
               FusedDone done) {
  auto recv = std::make_shared<FusedRecv>(step, std::move(keys), frame_iter,
                                          args, std::move(done));
  recv->StartWatch();
  const FusedKeys& k = *recv->keys;
  VLOG(2) << "tf_fuse: step " << step->step_id() << " receives "
          << k.tensor_names.size() << " tensors from " << k.send_task;
  if (PlainPeers::Get()->Contains(k.send_task, k.send_device_incarnation)) {
    Metrics::Get()->fallbacks.fetch_add(1, std::memory_order_relaxed);
    recv->slots.resize(k.tensor_names.size());
    RecvSingles(std::move(recv), AllIndices(k));
    return;
  }
  SendRequest(std::move(recv));
}

void RecvOneByOne(StepRendezvous* step, std::shared_ptr<const FusedKeys> keys,
                  const FrameAndIter& frame_iter, const Rendezvous::Args& args,
                  FusedDone done) {
  auto recv = std::make_shared<FusedRecv>(step, std::move(keys), frame_iter,
                                          args, std::move(done));
  recv->StartWatch();
  recv->slots.resize(recv->keys->tensor_names.size());
  const std::vector<size_t> all = AllIndices(*recv->keys);
  RecvSingles(std::move(recv), all);
}

}  // namespace tf_fuse
