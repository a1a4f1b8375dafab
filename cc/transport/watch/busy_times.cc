// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/watch/busy_times.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "tsl/platform/tracing.h"
#include "xla/tsl/platform/env.h"
#include "xla/tsl/profiler/backends/cpu/threadpool_listener_state.h"
#include "xla/tsl/profiler/utils/time_utils.h"

namespace tf_fuse {

namespace {

using tsl::tracing::EventCategory;
using tsl::tracing::EventCollector;
namespace listener = tsl::profiler::threadpool_listener;

// Executors run operations on these threads: those of a step, and those of a
// dataset with threads of its own. Closures of other threads wait for calls or
// elements, or do a part of an operation, for which one of these waits.
constexpr absl::string_view kPools[] = {"tf_Compute",
                                        "tf_data_private_threadpool"};

// Counts begins and ends of recordings, so that a thread knows whether a
// closure's begin is of the recording that runs.
std::atomic<uint64_t> recordings{0};
// How many more times fit into memory.
std::atomic<int64_t> room_for_times{0};

bool RunsOperations() {
  std::string name;
  if (!tsl::Env::Default()->GetCurrentThreadName(&name)) return false;
  return std::any_of(
      std::begin(kPools), std::end(kPools),
      [&](absl::string_view pool) { return absl::StartsWith(name, pool); });
}

// Of one thread, which alone calls Begin() and End().
class ThreadTimes {
 public:
  void Begin() {
    if (!runs_operations_) return;
    const uint64_t current = recordings.load(std::memory_order_acquire);
    if (recording_ != current) {
      recording_ = current;
      depth_ = 0;
    }
    // A pool whose queue is full runs a closure within another one.
    if (depth_++ == 0) start_ns_ = tsl::profiler::GetCurrentTimeNanos();
  }

  void End() {
    if (!runs_operations_) return;
    if (recording_ != recordings.load(std::memory_order_acquire)) return;
    if (depth_ == 0 || --depth_ > 0) return;
    const int64_t end_ns = tsl::profiler::GetCurrentTimeNanos();
    absl::MutexLock lock(&mu_);
    // Again: the recording may have ended meanwhile.
    if (recording_ != recordings.load(std::memory_order_acquire)) return;
    if (times_.size() == times_.capacity() && !Grow()) {
      ++dropped_;
      return;
    }
    times_.push_back({start_ns_, end_ns});
  }

  std::vector<BusyTime> Take(int64_t* dropped) {
    absl::MutexLock lock(&mu_);
    *dropped += std::exchange(dropped_, 0);
    return std::exchange(times_, {});
  }

 private:
  bool Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int64_t more = std::max<int64_t>(times_.size(), 64);
    if (room_for_times.fetch_sub(more) < more) {
      room_for_times.fetch_add(more);
      return false;
    }
    times_.reserve(times_.size() + more);
    return true;
  }

  const bool runs_operations_ = RunsOperations();
  uint64_t recording_ = 0;
  int depth_ = 0;
  int64_t start_ns_ = 0;

  absl::Mutex mu_;
  std::vector<BusyTime> times_ ABSL_GUARDED_BY(mu_);
  int64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
};

// Those of all threads; a thread that has ended leaves its own to the list.
class AllThreads {
 public:
  std::shared_ptr<ThreadTimes> Add() {
    auto times = std::make_shared<ThreadTimes>();
    absl::MutexLock lock(&mu_);
    all_.push_back(times);
    return times;
  }

  std::vector<BusyTime> Take(int64_t* dropped) {
    std::vector<BusyTime> found;
    absl::MutexLock lock(&mu_);
    for (const auto& thread : all_) {
      const std::vector<BusyTime> times = thread->Take(dropped);
      found.insert(found.end(), times.begin(), times.end());
    }
    all_.erase(std::remove_if(
                   all_.begin(), all_.end(),
                   [](const auto& thread) { return thread.use_count() == 1; }),
               all_.end());
    return found;
  }

  static AllThreads* Get() {
    // Never destroyed: threads may run closures while the process exits.
    static AllThreads* all = new AllThreads;
    return all;
  }

 private:
  absl::Mutex mu_;
  std::vector<std::shared_ptr<ThreadTimes>> all_ ABSL_GUARDED_BY(mu_);
};

ThreadTimes* TimesOfThisThread() {
  thread_local const std::shared_ptr<ThreadTimes> times =
      AllThreads::Get()->Add();
  return times.get();
}

class Collector : public EventCollector {
 public:
  void RecordEvent(tsl::uint64) const override {}
  void StartRegion(tsl::uint64) const override { TimesOfThisThread()->Begin(); }
  void StopRegion() const override { TimesOfThisThread()->End(); }

  static const Collector* Get() {
    // Never destroyed: a closure that is under way calls it at its end.
    static const Collector* collector = new Collector;
    return collector;
  }
};

std::vector<BusyTime> Merged(std::vector<BusyTime> times) {
  std::sort(times.begin(), times.end(),
            [](const BusyTime& a, const BusyTime& b) {
              return a.start_ns < b.start_ns;
            });
  std::vector<BusyTime> merged;
  for (const BusyTime& time : times) {
    if (!merged.empty() && time.start_ns <= merged.back().end_ns) {
      merged.back().end_ns = std::max(merged.back().end_ns, time.end_ns);
    } else {
      merged.push_back(time);
    }
  }
  return merged;
}

}  // namespace

BusyTimes* BusyTimes::Get() {
  static BusyTimes* times = new BusyTimes;
  return times;
}

bool BusyTimes::Start(size_t max_times) {
  absl::MutexLock lock(&mu_);
  if (EventCollector::IsEnabled()) return false;
  room_for_times.store(static_cast<int64_t>(max_times));
  recordings.fetch_add(1);
  // One that is set and not active collects nothing; TensorFlow's profiler
  // replaces it, too.
  tsl::tracing::SetEventCollector(EventCategory::kScheduleClosure, nullptr);
  tsl::tracing::SetEventCollector(EventCategory::kRunClosure, Collector::Get());
  listener::Activate();
  started_ = true;
  return true;
}

std::vector<BusyTime> BusyTimes::Stop(int64_t* dropped) {
  absl::MutexLock lock(&mu_);
  *dropped = 0;
  if (!std::exchange(started_, false)) return {};
  // Not another one that somebody has set meanwhile.
  if (tsl::tracing::GetEventCollector(EventCategory::kRunClosure) ==
      Collector::Get()) {
    listener::Deactivate();
    tsl::tracing::SetEventCollector(EventCategory::kRunClosure, nullptr);
  }
  recordings.fetch_add(1);
  return Merged(AllThreads::Get()->Take(dropped));
}

}  // namespace tf_fuse
