// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/receiver/watched_recv.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/metrics.h"
#include "channel/socket/keep_alive.h"
#include "transport/message/failed_slots.h"
#include "transport/message/tensor_frame.h"
#include "transport/peers/ask_peer.h"
#include "transport/peers/cluster.h"
#include "transport/watch/recv_trace.h"
#include "transport/watch/stall_report.h"

namespace tf_fuse {

using tensorflow::Tensor;

namespace {

// The indices in an answer to a stall query. Errors: DataLoss for what this
// version of tf_fuse does not send.
absl::Status ReadStallAnswer(const Tensor& frame, const FusedKeys& keys,
                             v1::StallAnswer* answer,
                             std::vector<size_t>* missing) {
  const absl::StatusOr<std::string> bytes = ReadBytesResponse(frame);
  if (!bytes.ok()) return bytes.status();
  if (!answer->ParseFromString(*bytes)) {
    return absl::DataLossError("no StallAnswer");
  }
  const size_t tensors = keys.tensor_names.size();
  for (const uint32_t index : answer->missing()) {
    if (index >= tensors || (!missing->empty() && index <= missing->back())) {
      return absl::DataLossError(
          absl::StrCat("tensor ", index, " of ", tensors));
    }
    missing->push_back(index);
  }
  return absl::OkStatus();
}

}  // namespace

WatchedRecv::WatchedRecv(const tensorflow::WorkerEnv* env, int64_t step_id,
                         std::shared_ptr<const FusedKeys> keys)
    : env_(env),
      step_id_(step_id),
      keys_(std::move(keys)),
      start_ns_(RecvTrace::Active() ? RecvTrace::NowNanos() : 0) {
  Metrics::Get()->pending_receives.fetch_add(1, std::memory_order_relaxed);
}

WatchedRecv::~WatchedRecv() {
  Metrics::Get()->pending_receives.fetch_sub(1, std::memory_order_relaxed);
}

void WatchedRecv::StartWatch() { place_.Enter(shared_from_this()); }

void WatchedRecv::RequestSent(
    std::shared_ptr<tensorflow::WorkerCacheInterface> worker_cache,
    int64_t request_id) {
  absl::MutexLock lock(&watch_mu_);
  worker_cache_ = std::move(worker_cache);
  request_id_ = request_id;
  is_kept_alive_ = false;
}

void WatchedRecv::SinglesSent(const std::vector<size_t>& indices) {
  absl::MutexLock lock(&watch_mu_);
  missing_.assign(Keys()->tensor_names.size(), false);
  for (const size_t index : indices) missing_[index] = true;
}

void WatchedRecv::SingleArrived(size_t index, size_t bytes) {
  absl::MutexLock lock(&watch_mu_);
  missing_[index] = false;
  if (!traced()) return;
  bytes_ += static_cast<int64_t>(bytes);
  // The sender knows better how long it waited for a tensor beside the frame.
  waits_micros_.resize(keys_->tensor_names.size(), 0);
  waits_micros_[index] = std::max(waits_micros_[index],
                                  (RecvTrace::NowNanos() - start_ns_) / 1000);
}

void WatchedRecv::FrameArrived(size_t bytes, std::vector<int64_t> waits_micros,
                               std::shared_ptr<const FusedKeys> arrived) {
  absl::MutexLock lock(&watch_mu_);
  bytes_ += static_cast<int64_t>(bytes);
  waits_micros_ = std::move(waits_micros);
  arrived_ = std::move(arrived);
}

void WatchedRecv::WatchEnded(absl::StatusCode code) {
  if (code == absl::StatusCode::kOk) {
    Metrics::Get()->receive_waits.Add(stopwatch_.Micros());
  }
  TracedRecv event;
  {
    absl::MutexLock lock(&watch_mu_);
    ended_ = true;
    event.bytes = bytes_;
    event.waits_micros = std::move(waits_micros_);
    event.received = std::move(arrived_);
  }
  if (!traced()) return;
  if (event.received == nullptr) event.received = Keys();
  if (event.received != keys_) {
    for (const std::string& name : event.received->tensor_names) {
      event.names_bytes += sizeof(name) + name.size();
    }
  }
  event.step_id = step_id_;
  event.start_ns = start_ns_;
  event.end_ns = RecvTrace::NowNanos();
  event.code = code;
  RecvTrace::Get()->Add(std::move(event));
}

void WatchedRecv::KeepAliveOnce() {
  {
    absl::MutexLock lock(&watch_mu_);
    if (ended_ || std::exchange(is_kept_alive_, true)) return;
  }
  const auto addresses = AddressesOfTasks();
  const auto found = addresses.find(Keys()->send_task);
  uint32_t port = 0;
  if (found == addresses.end() ||
      !absl::SimpleAtoi(found->second.substr(found->second.rfind(':') + 1),
                        &port) ||
      port > UINT16_MAX) {
    return;
  }
  KeepAliveToPort(static_cast<uint16_t>(port));
}

void WatchedRecv::OnTick(uint64_t waited_micros) {
  if (waited_micros >= StepWaitMicros()) KeepAliveOnce();
  if (StallMicros() == 0 || waited_micros < StallMicros()) return;
  bool ask;
  {
    absl::MutexLock lock(&watch_mu_);
    if (reported_ || ended_) return;
    reported_ = true;
    ask = missing_.empty();
  }
  Metrics::Get()->stalled_receives.fetch_add(1);
  if (!AdmitStallReport()) return;
  if (ask) return AskSender(waited_micros);
  v1::WaitingReceive waiting;
  if (!Describe(&waiting)) return;
  waiting.set_waited_micros(waited_micros);
  LogStall(waiting);
}

void WatchedRecv::AskSender(uint64_t waited_micros) {
  std::shared_ptr<tensorflow::WorkerCacheInterface> worker_cache;
  v1::FuseRecvTensorRequest query;
  {
    absl::MutexLock lock(&watch_mu_);
    worker_cache = worker_cache_;
    query.set_stalled_request_id(request_id_);
  }
  if (worker_cache == nullptr) return;  // Not sent yet.
  AskPeer(std::move(worker_cache), Keys()->send_task, HostDevice(env_),
          std::move(query), kAnswerTimeoutMs,
          [weak = weak_from_this(), waited_micros](const absl::Status& status,
                                                   const Tensor& frame) {
            const auto self = weak.lock();
            if (self != nullptr) self->OnAnswer(waited_micros, status, frame);
          });
}

int64_t WatchedRecv::awaited_request_id() {
  absl::MutexLock lock(&watch_mu_);
  return ended_ ? 0 : request_id_;
}

void WatchedRecv::OnAnswer(uint64_t waited_micros, const absl::Status& status,
                           const Tensor& frame) {
  v1::WaitingReceive waiting;
  // The tensors may have come while we asked.
  if (!Describe(&waiting)) return;
  waiting.set_waited_micros(waited_micros);
  if (!status.ok()) {
    LogStall(waiting,
             absl::StrCat("Asked which are missing, it gave no answer within ",
                          kAnswerTimeoutMs / 1000, " s: ",
                          absl::StatusCodeToString(status.code()), "."));
    return;
  }
  v1::StallAnswer answer;
  std::vector<size_t> missing;
  const std::shared_ptr<const FusedKeys> keys = Keys();
  if (!ReadStallAnswer(frame, *keys, &answer, &missing).ok()) {
    LogStall(waiting, "Its version of tf_fuse cannot say which are missing.");
  } else if (!answer.found()) {
    LogStall(waiting,
             "It does not wait for any of them: its answer is on the way, or "
             "the request has not arrived.");
  } else {
    SetMissing(
        missing, [&keys](size_t i) { return keys->tensor_names[i]; }, &waiting);
    waiting.set_step_not_begun(answer.step_not_begun());
    LogStall(waiting);
  }
}

bool WatchedRecv::Describe(v1::WaitingReceive* out) {
  std::vector<size_t> missing;
  bool one_by_one;
  {
    absl::MutexLock lock(&watch_mu_);
    if (ended_) return false;
    one_by_one = !missing_.empty();
    for (size_t i = 0; i < missing_.size(); ++i) {
      if (missing_[i]) missing.push_back(i);
    }
  }
  const std::shared_ptr<const FusedKeys> keys = Keys();
  const auto name = [&keys](size_t i) { return keys->tensor_names[i]; };
  // Names them all: nobody has been asked yet.
  SetMissing(one_by_one ? missing : AllIndices(*keys), name, out);
  if (!one_by_one) {
    out->set_missing_known(false);
    out->set_missing(0);
  }
  out->set_one_by_one(one_by_one);
  out->set_task(TaskOfDevice(keys->recv_device));
  out->set_peer(keys->send_task);
  out->set_step_id(step_id_);
  out->set_tensors(static_cast<uint32_t>(keys->tensor_names.size()));
  return true;
}

}  // namespace tf_fuse
