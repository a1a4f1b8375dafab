// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/remote_access/step_chunks.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/executors.h"
#include "collectives/remote_access/awaited_members.h"
#include "collectives/remote_access/remote_access.h"
#include "tensorflow/core/common_runtime/buf_rendezvous.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/dma_helper.h"

namespace tf_fuse {

using tensorflow::BufRendezvous;

namespace {

absl::StatusOr<PostedChunk> Posted(const ChunkKey& key,
                                   BufRendezvous::Hook* hook) {
  const tensorflow::Tensor& value = *hook->prod_value;
  if (hook->prod_dev->tensorflow_accelerator_device_info() != nullptr) {
    return absl::UnimplementedError(
        "chunks in the memory of accelerators go by TensorFlow's own way");
  }
  if (value.TotalBytes() != key.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a member of the collective has ", key.bytes, " bytes where ",
        hook->prod_dev->name(), " has ", value.TotalBytes(), " (shape ",
        value.shape().DebugString(), ", ",
        tensorflow::DataTypeString(value.dtype()), "): key ", key.key));
  }
  return PostedChunk{
      static_cast<const char*>(tensorflow::DMAHelper::base(&value)),
      [hook] { BufRendezvous::DoneWithHook(hook); }, /*read=*/nullptr};
}

}  // namespace

// A request for a step that does not run yet.
struct StepChunks::Early {
  int64_t step_id;
  std::string key;
  tensorflow::CancellationManager* cancellation;
  tensorflow::CancellationToken token;
  std::function<void(const absl::Status&)> then;
  // Whoever sets it answers the request.
  std::atomic<bool> answered{false};
};

bool StepChunks::MustWait(int64_t step_id) const {
  return knows_steps_ && steps_.count(step_id) == 0;
}

void StepChunks::Take(const ChunkKey& key,
                      tensorflow::CancellationManager* cancellation,
                      PostedDone done) {
  if (AnswerWaits(key, done)) return;
  Manager* manager = nullptr;
  Executor executor;
  {
    absl::MutexLock lock(&mu_);
    if (ended_) {
      // (Not under the lock.)
      ScheduleElsewhere([done = std::move(done)] {
        done(absl::UnavailableError("the task has ended"));
      });
      return;
    }
    if (!knows_steps_) {
      manager = manager_;
    } else if (auto found = steps_.find(key.step_id); found != steps_.end()) {
      executor = tsl::core::GetNewRef(found->second.get());
    }
    if (manager != nullptr || executor != nullptr) ++users_;
  }
  if (manager != nullptr) executor.reset(manager->FindOrCreate(key.step_id));
  if (executor == nullptr) {
    return AwaitStep(key.step_id, key.key, cancellation,
                     [self = shared_from_this(), key, cancellation,
                      done = std::move(done)](const absl::Status& status) {
                       if (!status.ok()) return done(status);
                       self->Take(key, cancellation, done);
                     });
  }
  TakeFrom(std::move(executor), key, cancellation, done);
  absl::MutexLock lock(&mu_);
  --users_;
}

void StepChunks::AwaitStep(int64_t step_id, const std::string& key,
                           tensorflow::CancellationManager* cancellation,
                           std::function<void(const absl::Status&)> then) {
  auto request = std::make_shared<Early>();
  request->step_id = step_id;
  request->key = key;
  request->cancellation = cancellation;
  request->then = std::move(then);
  if (!Wait(request)) request->then(absl::OkStatus());
}

bool StepChunks::Wait(const std::shared_ptr<Early>& request) {
  request->token = request->cancellation->get_cancellation_token();
  auto cancel = [self = shared_from_this(), request] {
    if (request->answered.exchange(true)) return;
    self->Forget(request);
    const auto then = std::move(request->then);
    // As the rendezvous of a step that runs says it.
    then(absl::CancelledError(absl::StrCat(
        "Operation was cancelled for BufRendezvous key ", request->key)));
  };
  if (!request->cancellation->RegisterCallback(request->token, cancel)) {
    cancel();
    return true;
  }
  {
    absl::MutexLock lock(&mu_);
    if (!ended_ && MustWait(request->step_id)) {
      // One that is cancelled now waits for the lock, and finds it there.
      if (!request->answered) early_.emplace(request->step_id, request);
      return true;
    }
  }
  if (request->answered.exchange(true)) return true;
  request->cancellation->TryDeregisterCallback(request->token);
  return false;
}

void StepChunks::Forget(const std::shared_ptr<Early>& request) {
  absl::MutexLock lock(&mu_);
  auto [begin, end] = early_.equal_range(request->step_id);
  for (auto it = begin; it != end; ++it) {
    if (it->second != request) continue;
    early_.erase(it);
    return;
  }
}

void StepChunks::Start(const Requests& requests, const absl::Status& status) {
  for (const auto& [step, request] : requests) {
    if (request->answered.exchange(true)) continue;
    request->cancellation->TryDeregisterCallback(request->token);
    // (The caller may hold locks of the manager.)
    ScheduleElsewhere([request = request, status] {
      const auto then = std::move(request->then);
      then(status);
    });
  }
}

// The reference is not held for longer: the step's end lets go of what waits in
// its executor.
void StepChunks::TakeFrom(Executor executor, const ChunkKey& key,
                          tensorflow::CancellationManager* cancellation,
                          const PostedDone& done) {
  tensorflow::CollectiveRemoteAccess* const access = executor->remote_access();
  auto* const fuse = FuseRemoteAccess::From(access);
  const absl::Status alike =
      fuse == nullptr || key.collective.empty()
          ? absl::OkStatus()
          : fuse->operands()->Compare(key.collective, key.operand, key.consumer,
                                      key.device);
  if (!alike.ok()) return done(alike);
  access->buf_rendezvous()->ConsumeBuf(
      key.key, key.device, key.device_incarnation,
      [self = shared_from_this(), key, cancellation, done,
       under_way = fuse == nullptr ? nullptr : fuse->under_way()](
          const absl::Status& status, BufRendezvous::Hook* hook) {
        // A copy: when the chunk is done with, which may be in this call,
        // the hook goes, and this function with it.
        const PostedDone finish = done;
        if (!status.ok()) {
          const absl::Status retired =
              under_way == nullptr ? absl::OkStatus() : under_way->retired();
          if (cancellation->IsCancelled() || retired.ok()) {
            return finish(status);
          }
          if (under_way->HasChunk(key.step_id, key.key)) return finish(retired);
          return self->Take(key, cancellation, finish);
        }
        absl::StatusOr<PostedChunk> posted = Posted(key, hook);
        const bool refused = !posted.ok();
        finish(std::move(posted));
        if (refused) BufRendezvous::DoneWithHook(hook);
      },
      cancellation);
}

void StepChunks::Attach(Manager* manager) {
  std::map<int64_t, Executor> before;  // Let go of without the lock.
  absl::MutexLock lock(&mu_);
  manager_ = manager;
  before.swap(steps_);
}

void StepChunks::StepBegan(const Manager* manager, int64_t step_id,
                           tensorflow::CollectiveExecutor* executor) {
  Requests requests;
  {
    absl::MutexLock lock(&mu_);
    if (manager != manager_) return;
    const bool began =
        steps_.try_emplace(step_id, tsl::core::GetNewRef(executor)).second;
    if (!began) return;
    auto [begin, end] = early_.equal_range(step_id);
    requests.insert(begin, end);
    early_.erase(begin, end);
  }
  Start(requests, absl::OkStatus());
}

void StepChunks::StepEnded(const Manager* manager, int64_t step_id) {
  Executor executor;
  absl::MutexLock lock(&mu_);
  if (manager != manager_) return;
  auto found = steps_.find(step_id);
  if (found == steps_.end()) return;
  executor = std::move(found->second);
  steps_.erase(found);
}

void StepChunks::AllStepsEnded(const Manager* manager) {
  std::map<int64_t, Executor> steps;
  absl::MutexLock lock(&mu_);
  if (manager == manager_) steps.swap(steps_);
}

void StepChunks::End(const Manager* manager) {
  Requests requests;
  std::map<int64_t, Executor> steps;
  {
    absl::MutexLock lock(&mu_);
    if (manager != manager_) return;
    ended_ = true;
    requests.swap(early_);
    steps.swap(steps_);
    auto unused = [this]()
                      ABSL_NO_THREAD_SAFETY_ANALYSIS { return users_ == 0; };
    mu_.Await(absl::Condition(&unused));
  }
  Start(requests, absl::UnavailableError("the task has ended"));
}

}  // namespace tf_fuse
