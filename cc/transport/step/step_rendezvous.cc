// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/step/step_rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/executors.h"
#include "base/metrics.h"
#include "channel/parcel.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/platform/logging.h"
#include "transport/message/failed_slots.h"

namespace tf_fuse {

StepRendezvous::StepRendezvous(const tensorflow::WorkerEnv* env,
                               int64_t step_id)
    : BaseRemoteRendezvous(env, step_id) {
  VLOG(1) << "tf_fuse: step " << step_id_ << " is open";
}

StepRendezvous::~StepRendezvous() {
  absl::MutexLock lock(&waiters_mu_);
  if (has_begun_ && abort_status_.ok()) {
    Metrics::Get()->open_steps.fetch_sub(1);
  }
  VLOG(1) << "tf_fuse: step " << step_id_ << " is over";
}

void StepRendezvous::Schedule(std::function<void()> closure) {
  Ref();
  ScheduleAfterOthers([this, closure = std::move(closure)] {
    closure();
    Unref();
  });
}

bool StepRendezvous::WhenInitialized(const void* key, StepStarted start) {
  absl::Status status;
  {
    absl::MutexLock lock(&waiters_mu_);
    if (abort_status_.ok() && !is_initialized()) {
      waiters_[key] = {std::move(start), tsl::core::GetNewRef(this)};
      return true;
    }
    status = abort_status_;
  }
  start(status);
  return false;
}

void StepRendezvous::StopWaiting(const void* key) {
  Waiters::node_type dropped;  // Destroyed without the lock.
  absl::MutexLock lock(&waiters_mu_);
  dropped = waiters_.extract(key);
}

void StepRendezvous::RunWaiters(const absl::Status& status) {
  Waiters waiters;
  {
    absl::MutexLock lock(&waiters_mu_);
    waiters.swap(waiters_);
  }
  for (auto& [key, waiter] : waiters) waiter.start(status);
}

absl::Status StepRendezvous::Initialize(tensorflow::WorkerSession* session) {
  VLOG(1) << "tf_fuse: step " << step_id_ << " begins";
  const absl::Status status = BaseRemoteRendezvous::Initialize(session);
  if (!is_initialized()) return status;
  {
    absl::MutexLock lock(&waiters_mu_);
    // A rendezvous that has not begun holds late requests at most, TensorFlow's
    // own or ours, and does not count as a step. One may begin twice.
    if (!has_begun_ && abort_status_.ok()) {
      Metrics::Get()->open_steps.fetch_add(1);
      Metrics::Get()->steps.fetch_add(1);
      workers_ = session->GetSharedWorkerCache();
    }
    has_begun_ = true;
  }
  RunWaiters(absl::OkStatus());
  return status;
}

void StepRendezvous::StartAbort(const absl::Status& given) {
  // A peer's error may be what the step is aborted with. Its calls that take
  // this status for their answers must not ask again.
  const absl::Status status = WithoutOurPayloads(given);
  VLOG(1) << "tf_fuse: step " << step_id_ << " is aborted: " << status;
  // A waiter's reference may be the last one.
  const auto self = tsl::core::GetNewRef(this);
  std::shared_ptr<tensorflow::WorkerCacheInterface> workers;
  {
    absl::MutexLock lock(&waiters_mu_);
    // TensorFlow keeps what was aborted for ever, so that it is still found:
    // the end of such a step is its abort, not its destruction.
    if (has_begun_ && abort_status_.ok()) {
      Metrics::Get()->open_steps.fetch_sub(1);
    }
    abort_status_.Update(status);
    workers = std::move(workers_);
  }
  std::vector<std::shared_ptr<Parcel>> parcels;
  {
    absl::MutexLock lock(&parcels_mu_);
    parcels.swap(parcels_);
  }
  for (const auto& parcel : parcels) parcel->Drop(status);
  // Before the receives end that it has started: it knows why, then.
  AbortPartialSends(status);
  BaseRemoteRendezvous::StartAbort(status);
  RunWaiters(status);
}

absl::Status StepRendezvous::abort_status() {
  absl::MutexLock lock(&waiters_mu_);
  return abort_status_;
}

std::shared_ptr<tensorflow::WorkerCacheInterface> StepRendezvous::workers() {
  absl::MutexLock lock(&waiters_mu_);
  return workers_;
}

void StepRendezvous::AddParcel(const std::shared_ptr<Parcel>& parcel) {
  {
    absl::MutexLock lock(&parcels_mu_);
    // Of a long loop, most have been taken.
    if (parcels_.size() == parcels_.capacity()) {
      parcels_.erase(std::remove_if(parcels_.begin(), parcels_.end(),
                                    [](const std::shared_ptr<Parcel>& one) {
                                      return one->gone();
                                    }),
                     parcels_.end());
    }
    parcels_.push_back(parcel);
  }
  // An abort before that did not find it.
  const absl::Status aborted = abort_status();
  if (!aborted.ok()) parcel->Drop(aborted);
}

}  // namespace tf_fuse
