// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/watch/watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/limits.h"
#include "tensorflow/core/platform/env.h"

namespace tf_fuse {

namespace {

// Of a clock that nobody sets.
uint64_t NowMicros() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(
          std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// Nothing is of interest before.
uint64_t ShortestMicros() {
  return StallMicros() == 0 ? StepWaitMicros()
                            : std::min(StepWaitMicros(), StallMicros());
}

// At most a quarter late.
int64_t TickMicros() {
  return static_cast<int64_t>(std::max<uint64_t>(ShortestMicros() / 4, 1000));
}

}  // namespace

Watch* Watch::Get() {
  // Never destroyed: the timer may run while the process exits.
  static Watch* watch = new Watch;
  return watch;
}

void Watch::Place::Enter(const std::shared_ptr<Waiting>& waiting,
                         int64_t request_id) {
  Watch* watch = Watch::Get();
  absl::MutexLock lock(&watch->mu_);
  entry_ = watch->entries_.insert(watch->entries_.end(),
                                  {NowMicros(), request_id, waiting});
  entered_ = true;
  if (request_id != 0) watch->by_id_.emplace(request_id, entry_);
  if (watch->running_) return;
  watch->running_ = true;
  tensorflow::Env::Default()->SchedClosureAfter(TickMicros(),
                                                [watch] { watch->Run(); });
}

Watch::Place::~Place() {
  if (!entered_) return;
  Watch* watch = Watch::Get();
  Entries left;  // Destroyed without the lock.
  absl::MutexLock lock(&watch->mu_);
  const auto found = watch->by_id_.find(entry_->request_id);
  if (found != watch->by_id_.end() && found->second == entry_) {
    watch->by_id_.erase(found);
  }
  left.splice(left.end(), watch->entries_, entry_);
}

std::vector<Watch::Found> Watch::WaitingFor(uint64_t micros, size_t most) {
  std::vector<Found> found;
  absl::MutexLock lock(&mu_);
  const uint64_t now = NowMicros();
  for (const Place::Entry& entry : entries_) {
    const uint64_t waited = now - entry.start_micros;
    if (waited < micros || found.size() == most) break;
    std::shared_ptr<Waiting> waiting = entry.waiting.lock();
    if (waiting != nullptr) found.push_back({waited, std::move(waiting)});
  }
  return found;
}

void Watch::Run() {
  while (true) {
    for (const Found& found : WaitingFor(ShortestMicros())) {
      found.waiting->OnTick(found.waited_micros);
    }
    {
      absl::MutexLock lock(&mu_);
      running_ = !entries_.empty();
      if (!running_) return;  // The next entry starts it again.
    }
    tensorflow::Env::Default()->SleepForMicroseconds(TickMicros());
  }
}

v1::WaitingReceives Watch::Describe() {
  v1::WaitingReceives all;
  size_t bytes = 0;
  for (const Found& found : WaitingFor(0, kMaxListed)) {
    v1::WaitingReceive one;
    if (!found.waiting->Describe(&one)) continue;
    one.set_waited_micros(found.waited_micros);
    bytes += one.ByteSizeLong();
    if (bytes > kMaxListedBytes) break;
    *all.add_receives() = std::move(one);
  }
  return all;
}

std::shared_ptr<Waiting> Watch::Find(int64_t request_id) {
  absl::MutexLock lock(&mu_);
  const auto found = by_id_.find(request_id);
  return found == by_id_.end() ? nullptr : found->second->waiting.lock();
}

bool Watch::Awaits(int64_t request_id) {
  const std::vector<Found> all = WaitingFor(0);
  return std::any_of(all.begin(), all.end(), [&](const Found& found) {
    return found.waiting->awaited_request_id() == request_id;
  });
}

}  // namespace tf_fuse
