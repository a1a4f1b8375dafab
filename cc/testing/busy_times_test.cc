// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
//   busy_times_test SECONDS SEED
//
// Closures of TensorFlow's thread pools while times are collected, and while
// they are not: those of the threads that run operations must be in a time, no
// others; another collector is left alone, memory is bounded. Then closures on
// pools that come and go, while recordings begin and end. Made for
// ThreadSanitizer.

#include "transport/watch/busy_times.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frame/frame_testing.h"
#include "testing/program_main.h"
#include "transport/watch/recv_trace.h"
#include "tsl/platform/tracing.h"
#include "xla/tsl/platform/env.h"
#include "xla/tsl/platform/threadpool.h"
#include "xla/tsl/profiler/backends/cpu/threadpool_listener_state.h"

namespace tf_fuse {

namespace testing {
namespace {

using frame::testing::Random;
using tsl::thread::ThreadPool;
using tsl::tracing::EventCategory;
using tsl::tracing::EventCollector;
namespace listener = tsl::profiler::threadpool_listener;

// Runs closures on a pool, and ends its threads: each region has ended then.
void RunOn(const char* pool_name, int threads, int closures,
           const std::function<void(int)>& closure) {
  ThreadPool pool(tsl::Env::Default(), pool_name, threads);
  for (int i = 0; i < closures; ++i) {
    pool.Schedule([&closure, i] { closure(i); });
  }
}

void Nothing(int) {}

std::vector<BusyTime> Stop(int64_t* dropped = nullptr) {
  int64_t own = 0;
  return BusyTimes::Get()->Stop(dropped == nullptr ? &own : dropped);
}

bool IsWithin(const BusyTime& inner, const std::vector<BusyTime>& times) {
  return std::any_of(times.begin(), times.end(), [&](const BusyTime& time) {
    return time.start_ns <= inner.start_ns && inner.end_ns <= time.end_ns;
  });
}

bool AreInOrder(const std::vector<BusyTime>& times) {
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i].start_ns > times[i].end_ns) return false;
    if (i > 0 && times[i - 1].end_ns >= times[i].start_ns) return false;
  }
  return true;
}

bool ClosuresAreInATime() {
  for (const char* pool : {"Compute", "data_private_threadpool"}) {
    std::vector<BusyTime> ran(1000);
    if (!BusyTimes::Get()->Start()) return Fails("Start() was refused");
    RunOn(pool, 4, 1000, [&](int i) {
      ran[i].start_ns = RecvTrace::NowNanos();
      ran[i].end_ns = RecvTrace::NowNanos();
    });
    const std::vector<BusyTime> times = Stop();
    if (!AreInOrder(times)) return Fails("times are not in order");
    for (const BusyTime& one : ran) {
      if (!IsWithin(one, times)) {
        return Fails(absl::StrCat("a closure of ", pool, " is in no time"));
      }
    }
  }
  return true;
}

// A pool whose queue is full runs a closure within the one that schedules it.
bool NestedClosuresAreOneTime() {
  if (!BusyTimes::Get()->Start()) return Fails("nested: Start() was refused");
  BusyTime outer{};
  int inner = 0;
  {
    ThreadPool pool(tsl::Env::Default(), "Compute", 1);
    pool.Schedule([&] {
      outer.start_ns = RecvTrace::NowNanos();
      const auto own = std::this_thread::get_id();
      bool is_outer_running = true;
      for (int i = 0; i < 5000; ++i) {
        pool.Schedule([&, own] {
          if (is_outer_running && std::this_thread::get_id() == own) ++inner;
        });
      }
      is_outer_running = false;
      outer.end_ns = RecvTrace::NowNanos();
    });
  }
  const std::vector<BusyTime> times = Stop();
  if (inner == 0) return Fails("nested: no closure ran within another one");
  return IsWithin(outer, times) ||
         Fails("nested: the outer closure's time is in parts");
}

// One that is under way when a recording ends is in no time, and does no harm
// to the times of its thread in the next recording.
bool ClosuresOfTwoRecordingsAreLeftOut() {
  if (!BusyTimes::Get()->Start()) return Fails("two: Start() was refused");
  BusyTime next{};
  {
    ThreadPool pool(tsl::Env::Default(), "Compute", 1);
    Ended begun, first_is_over, ended;
    pool.Schedule([&] {
      begun.Add();
      (void)first_is_over.WaitFor(1);
    });
    if (!begun.WaitFor(1)) return Fails("two: the closure did not begin");
    if (!Stop().empty()) return Fails("two: an open closure has a time");
    first_is_over.Add();
    // On the same thread, so that the first one's region has ended.
    pool.Schedule([&] { ended.Add(); });
    if (!ended.WaitFor(1)) return Fails("two: the closure did not end");
    if (!BusyTimes::Get()->Start()) return Fails("two: Start() was refused");
    pool.Schedule([&] {
      next.start_ns = RecvTrace::NowNanos();
      next.end_ns = RecvTrace::NowNanos();
    });
  }
  return IsWithin(next, Stop()) || Fails("two: the next closure has no time");
}

bool OtherThreadsAreLeftOut() {
  if (!BusyTimes::Get()->Start()) return Fails("others: Start() was refused");
  RunOn("GrpcWorkerEnvQueues", 2, 100, Nothing);
  return Stop().empty() || Fails("others: their closures are in times");
}

bool NothingIsCollectedWhenOff() {
  RunOn("Compute", 2, 100, Nothing);
  if (!Stop().empty()) return Fails("off: times before the first recording");
  if (EventCollector::IsEnabled()) return Fails("off: a collector is active");
  if (!BusyTimes::Get()->Start()) return Fails("off: Start() was refused");
  Stop();
  if (EventCollector::IsEnabled()) return Fails("off: it stays active");
  RunOn("Compute", 2, 100, Nothing);
  if (!BusyTimes::Get()->Start()) return Fails("off: Start() was refused");
  return Stop().empty() || Fails("off: times from between two recordings");
}

bool MemoryIsBounded() {
  constexpr int kClosures = 20 * 500;
  constexpr size_t kRoom = 1000;
  if (!BusyTimes::Get()->Start(kRoom)) return Fails("room: was refused");
  // (This thread would run what does not fit into a pool's queue.)
  for (int i = 0; i < 20; ++i) RunOn("Compute", 4, kClosures / 20, Nothing);
  int64_t dropped = 0;
  const size_t kept = Stop(&dropped).size();
  if (kept == 0 || kept > kRoom) return Fails(absl::StrCat("room: ", kept));
  return dropped >= kClosures - static_cast<int64_t>(kRoom) ||
         Fails(absl::StrCat("room: only ", dropped, " were dropped"));
}

// Of another profiler.
class Other : public EventCollector {
 public:
  void RecordEvent(tsl::uint64) const override {}
  void StartRegion(tsl::uint64) const override { regions.fetch_add(1); }
  void StopRegion() const override {}

  void Activate() const {
    tsl::tracing::SetEventCollector(EventCategory::kRunClosure, this);
    listener::Activate();
  }
  // False if it was not active.
  bool Deactivate() const {
    const bool was_active =
        tsl::tracing::GetEventCollector(EventCategory::kRunClosure) == this;
    listener::Deactivate();
    tsl::tracing::SetEventCollector(EventCategory::kRunClosure, nullptr);
    return was_active;
  }

  mutable std::atomic<int> regions{0};
};

bool AnotherCollectorIsLeftAlone() {
  static const auto* other = new Other;
  other->Activate();
  if (BusyTimes::Get()->Start()) return Fails("other: it was replaced");
  RunOn("Compute", 2, 100, Nothing);
  if (!Stop().empty()) return Fails("other: times were collected");
  if (other->regions.load() != 100) return Fails("other: it missed closures");
  if (!other->Deactivate()) return Fails("other: Stop() has ended it");

  // One that comes while times are collected.
  if (!BusyTimes::Get()->Start()) return Fails("other: Start() was refused");
  listener::Deactivate();
  other->Activate();
  Stop();
  return other->Deactivate() || Fails("other: Stop() has ended the later one");
}

// Pools come and go while recordings begin and end.
bool Race(double seconds, uint64_t seed) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const auto goes_on = [&] { return std::chrono::steady_clock::now() < until; };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      Random random(seed + i);
      while (goes_on()) {
        RunOn(random.Below(4) == 0 ? "Eigen" : "Compute",
              1 + static_cast<int>(random.Below(3)),
              static_cast<int>(random.Below(500)), Nothing);
      }
    });
  }
  bool right = true;
  int64_t recordings = 0;
  for (Random random(seed + 2); goes_on() && right; ++recordings) {
    const int64_t begin_ns = RecvTrace::NowNanos();
    right = BusyTimes::Get()->Start(1 + random.Below(2000));
    std::this_thread::sleep_for(std::chrono::microseconds(random.Below(5000)));
    const std::vector<BusyTime> times = Stop();
    right = right && AreInOrder(times) &&
            (times.empty() || times[0].start_ns >= begin_ns);
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%lld recordings\n", static_cast<long long>(recordings));
  return right || Fails("race: times of another recording");
}

int Main(double seconds, uint64_t seed) {
  const bool right = NothingIsCollectedWhenOff() && ClosuresAreInATime() &&
                     NestedClosuresAreOneTime() &&
                     ClosuresOfTwoRecordingsAreLeftOut() &&
                     OtherThreadsAreLeftOut() && MemoryIsBounded() &&
                     AnotherCollectorIsLeftAlone() && Race(seconds, seed);
  std::printf("%s\n", right ? "clean" : "failed");
  return right ? 0 : 1;
}

}  // namespace
}  // namespace testing
}  // namespace tf_fuse

int main(int argc, char** argv) {
  return tf_fuse::testing::RunForSeconds(argc, argv, &tf_fuse::testing::Main);
}
