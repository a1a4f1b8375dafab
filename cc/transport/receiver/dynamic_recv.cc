// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/receiver/dynamic_recv.h"

#include <algorithm>
#include <iterator>

#include "base/limits.h"
#include "base/metrics.h"
#include "tensorflow/core/platform/logging.h"
#include "transport/message/failed_slots.h"
#include "transport/message/tensor_frame.h"
#include "transport/peers/plain_peers.h"
#include "transport/receiver/watched_recv.h"

namespace tf_fuse {

using tensorflow::FrameAndIter;
using tensorflow::Tensor;

namespace {

// Senders read a limited number of bytes beside the names.
constexpr size_t kMaxBatchesPerRequest = 64;

}  // namespace

struct DynamicRecv::Receive {
  std::shared_ptr<const FusedKeys> keys;  // One tensor.
  Args args;
  Done done;
};

struct DynamicRecv::Batch {
  int64_t request_id = 0;
  Receives receives;
};

// A request that waits at its sender has none of its tensors.
struct DynamicRecv::Request : public WatchedRecv {
  Request(const tensorflow::WorkerEnv* env, int64_t step_id, Route route)
      : WatchedRecv(env, step_id, nullptr), route(std::move(route)) {}

  std::vector<Receive*> InOrder() {
    std::vector<Receive*> receives;
    for (Batch& batch : batches) {
      for (Receive& receive : batch.receives) receives.push_back(&receive);
    }
    return receives;
  }

  // Some of all, in order.
  std::shared_ptr<const FusedKeys> KeysOf(const std::vector<size_t>& indices) {
    auto some = std::make_shared<FusedKeys>();
    some->send_device = route.send_device;
    some->recv_device = route.recv_device;
    some->send_task = keys_of_each[0]->send_task;
    for (const size_t i : indices) {
      some->tensor_names.push_back(keys_of_each[i]->tensor_names[0]);
    }
    return some;
  }

  const Route route;
  std::vector<Batch> batches;
  // Of all receives; not changed once it is watched.
  std::vector<std::shared_ptr<const FusedKeys>> keys_of_each;

 protected:
  // Only made for a look at it.
  std::shared_ptr<const FusedKeys> Keys() override {
    return KeysOf(AllIndices(keys_of_each.size()));
  }
};

// What is to be asked for. It exists as long as somebody flushes it, or will.
struct DynamicRecv::Queue {
  std::vector<Batch> batches;
  Receives fresh;
};

DynamicRecv::DynamicRecv(const tensorflow::WorkerEnv* env, int64_t step_id,
                         StepRendezvous* step)
    : env_(env), step_id_(step_id), step_(step) {}

DynamicRecv::~DynamicRecv() = default;

void DynamicRecv::RecvAsync(std::shared_ptr<const FusedKeys> keys,
                            const FrameAndIter& frame_iter, const Args& args,
                            Done done) {
  const Route route = {keys->send_device,  keys->send_device_incarnation,
                       keys->recv_device,  frame_iter.frame_id,
                       frame_iter.iter_id, args.cancellation_manager};
  bool schedule;
  {
    absl::MutexLock lock(&mu_);
    std::unique_ptr<Queue>& queue = queues_[route];
    schedule = queue == nullptr;
    if (schedule) queue = std::make_unique<Queue>();
    queue->fresh.push_back({std::move(keys), args, std::move(done)});
  }
  if (schedule) ScheduleFlush(route);
}

// On another thread: those that the executor issues meanwhile share the
// request.
void DynamicRecv::ScheduleFlush(const Route& route) {
  step_->Schedule([this, route] { Flush(route); });
}

// Senders serve a limited number of tensors per request. What is the rest of an
// answer is not above the limit, and cannot be split.
std::vector<DynamicRecv::Batch> DynamicRecv::SplitBatches(
    std::vector<Batch> batches) {
  std::vector<Batch> result;
  const size_t most = MaxKeysPerRequest();
  for (Batch& batch : batches) {
    while (batch.request_id == 0 && batch.receives.size() > most) {
      const auto middle = batch.receives.end() - static_cast<ptrdiff_t>(most);
      Batch part;
      std::move(middle, batch.receives.end(),
                std::back_inserter(part.receives));
      batch.receives.erase(middle, batch.receives.end());
      result.push_back(std::move(part));
    }
    result.push_back(std::move(batch));
  }
  return result;
}

void DynamicRecv::Flush(const Route& route) {
  while (true) {
    std::vector<Batch> batches;
    {
      absl::MutexLock lock(&mu_);
      auto it = queues_.find(route);
      batches = std::move(it->second->batches);
      if (!it->second->fresh.empty()) {
        batches.push_back({0, std::move(it->second->fresh)});
      }
      if (batches.empty()) {
        queues_.erase(it);
        return;
      }
      it->second->batches.clear();
      it->second->fresh.clear();
    }
    // What comes while these are sent shares the next ones.
    for (const auto& request : MakeRequests(route, std::move(batches))) {
      Send(request);
    }
  }
}

std::vector<std::shared_ptr<DynamicRecv::Request>> DynamicRecv::MakeRequests(
    const Route& route, std::vector<Batch> batches) {
  std::vector<std::shared_ptr<Request>> requests;
  size_t tensors = 0;  // Of the last request.
  for (Batch& batch : SplitBatches(std::move(batches))) {
    tensors += batch.receives.size();
    if (requests.empty() ||
        requests.back()->batches.size() == kMaxBatchesPerRequest ||
        tensors > MaxKeysPerRequest()) {
      requests.push_back(std::make_shared<Request>(env_, step_id_, route));
      tensors = batch.receives.size();
    }
    requests.back()->batches.push_back(std::move(batch));
  }
  return requests;
}

void DynamicRecv::Send(const std::shared_ptr<Request>& request) {
  const Route& route = request->route;
  v1::FuseRecvTensorRequest message;
  message.set_frame_version(frame::kVersion);
  message.set_send_device(route.send_device);
  message.set_send_device_incarnation(route.incarnation);
  message.set_recv_device(route.recv_device);
  message.set_frame_id(route.frame_id);
  message.set_iteration(route.iteration);
  message.set_max_frame_bytes(MaxFrameBytes());
  message.set_report_waits(request->traced());
  // Those that the sender knows come first in its answer.
  std::stable_partition(
      request->batches.begin(), request->batches.end(),
      [](const Batch& batch) { return batch.request_id != 0; });
  for (const Batch& batch : request->batches) {
    if (batch.request_id != 0) {
      message.add_rest_of_requests(batch.request_id);
    }
    for (const Receive& receive : batch.receives) {
      request->keys_of_each.push_back(receive.keys);
      if (batch.request_id == 0) {
        message.add_tensor_names(receive.keys->tensor_names[0]);
      }
    }
  }
  google::protobuf::Any options;
  options.set_type_url(kPartialRequestTypeUrl);
  options.set_value(message.SerializeAsString());
  Metrics::Get()->dynamic_requests.fetch_add(1, std::memory_order_relaxed);

  request->StartWatch();
  const std::string task = request->keys_of_each[0]->send_task;
  const Args args = request->InOrder()[0]->args;
  step_->StartCall(
      {task, request->keys_of_each[0]->send_device_incarnation,
       route.recv_device,
       FusedRendezvousKey(route.send_device, route.recv_device,
                          request->keys_of_each.size()),
       request->keys_of_each.size()},
      args, std::move(options),
      [this, request](const absl::Status& status, const Tensor& frame,
                      int64_t request_id) {
        if (!status.ok()) request->WatchEnded(status.code());
        OnAnswer(request.get(), status, frame, request_id);
      },
      [request](std::shared_ptr<tensorflow::WorkerCacheInterface> worker_cache,
                int64_t request_id) {
        request->RequestSent(std::move(worker_cache), request_id);
      });
}

void DynamicRecv::OnAnswer(Request* request, const absl::Status& status,
                           const Tensor& frame, int64_t request_id) {
  const std::vector<Receive*> receives = request->InOrder();
  const FusedKeys& any = *receives[0]->keys;
  const FrameAndIter frame_iter(request->route.frame_id,
                                request->route.iteration);
  if (status.ok()) {
    OnFrame(request, frame, request_id);
    return;
  }
  if (IsAnswerOfPlainPeer(status)) {
    PlainPeers::Get()->Insert(any.send_task, any.send_device_incarnation);
    for (Receive* receive : receives) {
      RecvOneByOne(step_, receive->keys, frame_iter, receive->args,
                   std::move(receive->done));
    }
    return;
  }
  if (IsPostponed(status)) {
    AskAgain(request->route, std::move(request->batches));
    return;
  }
  Batch rest;
  rest.request_id = request_id;
  Receives failed;
  const std::vector<size_t> failed_indices =
      FailedIndices(status, receives.size());
  for (size_t i = 0, next = 0; i < receives.size(); ++i) {
    const bool is_failed =
        next < failed_indices.size() && failed_indices[next] == i;
    next += is_failed ? 1 : 0;
    (is_failed ? failed : rest.receives).push_back(std::move(*receives[i]));
  }
  if (!rest.receives.empty()) {
    std::vector<Batch> batches;
    batches.push_back(std::move(rest));
    AskAgain(request->route, std::move(batches));
  }
  for (Receive& receive : failed) Fail(&receive, status);
}

void DynamicRecv::OnFrame(Request* request, const Tensor& frame,
                          int64_t request_id) {
  const std::vector<Receive*> receives = request->InOrder();
  tensorflow::DataTypeVector types;
  std::vector<bool> copy_out;
  for (const Receive* receive : receives) {
    const FusedKeys& keys = *receive->keys;
    types.push_back(keys.types[0]);
    copy_out.push_back(!keys.copy_out.empty() && keys.copy_out[0]);
  }
  std::vector<size_t> positions;
  std::vector<Slot> slots;
  std::vector<int64_t> waits_micros;
  const absl::Status status =
      UnpackPartialFrame(frame, types, copy_out, &positions, &slots,
                         request->traced() ? &waits_micros : nullptr);
  if (request->traced() && status.ok()) {
    request->FrameArrived(frame.TotalBytes(), std::move(waits_micros),
                          request->KeysOf(positions));
  }
  request->WatchEnded(status.code());
  if (!status.ok()) {
    for (Receive* receive : receives) Fail(receive, status);
    return;
  }
  Metrics* metrics = Metrics::Get();
  metrics->fused_rpcs.fetch_add(1, std::memory_order_relaxed);
  metrics->tensors.fetch_add(slots.size(), std::memory_order_relaxed);
  metrics->bytes.fetch_add(frame.TotalBytes(), std::memory_order_relaxed);
  Batch rest;
  rest.request_id = request_id;
  Receives arrived;
  for (size_t i = 0, next = 0; i < receives.size(); ++i) {
    const bool has_arrived = next < positions.size() && positions[next] == i;
    next += has_arrived ? 1 : 0;
    (has_arrived ? arrived : rest.receives).push_back(std::move(*receives[i]));
  }
  // First: the sender works on it while what has come is handed out.
  if (!rest.receives.empty()) {
    metrics->dynamic_rounds.fetch_add(1, std::memory_order_relaxed);
    std::vector<Batch> batches;
    batches.push_back(std::move(rest));
    AskAgain(request->route, std::move(batches));
  }
  const FrameAndIter frame_iter(request->route.frame_id,
                                request->route.iteration);
  for (size_t i = 0; i < arrived.size(); ++i) {
    Receive& receive = arrived[i];
    if (slots[i].beside) {
      metrics->beside_tensors.fetch_add(1, std::memory_order_relaxed);
      RecvOneByOne(step_, receive.keys, frame_iter, receive.args,
                   std::move(receive.done));
      continue;
    }
    std::vector<Slot> slot(1);
    slot[0] = std::move(slots[i]);
    receive.done(absl::OkStatus(), std::move(slot));
  }
}

void DynamicRecv::AskAgain(const Route& route, std::vector<Batch> batches) {
  bool flush;
  {
    absl::MutexLock lock(&mu_);
    std::unique_ptr<Queue>& queue = queues_[route];
    flush = queue == nullptr;
    if (flush) queue = std::make_unique<Queue>();
    for (Batch& batch : batches) queue->batches.push_back(std::move(batch));
  }
  // Else another thread is about to.
  if (flush) Flush(route);
}

void DynamicRecv::Fail(Receive* receive, const absl::Status& status) {
  Metrics::Get()->errors.fetch_add(1);
  receive->done(NameFailedTensors(status, *receive->keys, {0}), {});
}

}  // namespace tf_fuse
