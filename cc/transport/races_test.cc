// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Steps of two tasks whose parts run on several threads: begin, send, receive,
// abort, cancel, look on. ThreadSanitizer reports what is not ordered.
//
//   races_test SECONDS SEED

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "frame/frame_testing.h"
#include "passes/fuse_recv_pass.h"
#include "tensorflow/core/framework/cancellation.h"
#include "transport/fuse_server.h"
#include "transport/fuzz_values.h"
#include "transport/loopback_testing.h"
#include "transport/metrics.h"
#include "transport/recv_trace.h"
#include "transport/watch.h"

namespace tf_fuse {

// Parts of the library that are not tested here, and that questions ask.
std::vector<v1::FuseReport> RecentReports() { return {}; }
std::set<std::string> LocalTasks() { return {}; }
std::shared_ptr<tensorflow::WorkerCacheInterface> ClusterWorkers(
    tensorflow::Device**) {
  return nullptr;
}

namespace testing {
namespace {

using frame::testing::Random;
using tensorflow::Rendezvous;

struct Tasks {
  Task sender{"/job:ps/replica:0/task:0", 1, 2, nullptr};
  Loopback wire{&sender};
  Task receiver{"/job:worker/replica:0/task:0", 2, 2,
                std::make_unique<LoopbackWorkers>(&wire)};
};

// Waits without absl::Mutex: ThreadSanitizer does not see Await().
class Ended {
 public:
  void Add() {
    std::lock_guard<std::mutex> lock(mu_);
    ++count_;
    changed_.notify_all();
  }
  bool WaitFor(int count) {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, std::chrono::seconds(60),
                             [&] { return count_ >= count; });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  int count_ = 0;
};

std::shared_ptr<const FusedKeys> Keys(Tasks* tasks, int tensors) {
  auto keys = std::make_shared<FusedKeys>();
  keys->send_device = tasks->sender.device_name();
  keys->send_device_incarnation = 1;
  keys->recv_device = tasks->receiver.device_name();
  for (int i = 0; i < tensors; ++i) {
    keys->tensor_names.push_back(absl::StrCat("edge_", i));
    const Slot value = ValueOf(keys->tensor_names.back());
    keys->types.push_back(value.is_dead ? tensorflow::DT_FLOAT
                                        : value.tensor.dtype());
  }
  if (!FinishFusedKeys(keys.get()).ok()) std::abort();
  return keys;
}

// One step, its parts at once. Returns whether it was answered.
bool RunStep(Tasks* tasks, int64_t id, uint64_t seed) {
  Random random(seed);
  const auto keys = Keys(tasks, 1 + static_cast<int>(random.Below(20)));
  tensorflow::CancellationManager cancellation;
  Ended ended;
  (void)tasks->receiver.Begin(id);
  const auto receive = [&] {
    Rendezvous::Args args;
    args.cancellation_manager = &cancellation;
    tasks->receiver.Step(id)->RecvFusedAsync(
        keys, {0, 0}, args,
        [&ended](const absl::Status&, std::vector<Slot>) { ended.Add(); });
  };
  const auto send = [&] {
    (void)tasks->sender.Begin(id);
    const auto step = tasks->sender.Step(id);
    for (size_t i = 0; i < keys->tensor_names.size(); ++i) {
      Rendezvous::ParsedKey key;
      if (!ParseSlotKey(*keys, i, {0, 0}, &key).ok()) std::abort();
      const Slot value = ValueOf(keys->tensor_names[i]);
      (void)step->Send(key, Rendezvous::Args(), value.tensor, value.is_dead);
    }
  };
  const uint64_t fault = random.Below(8);
  const auto disturb = [&] {
    switch (fault) {
      case 0:
        tasks->sender.Step(id)->StartAbort(absl::InternalError("sender"));
        break;
      case 1:
        tasks->receiver.Step(id)->StartAbort(absl::InternalError("receiver"));
        break;
      case 2:
        cancellation.StartCancel();
        break;
      case 3:
        RecvTrace::Get()->Start();
        break;
      case 4: {
        int64_t dropped = 0;
        RecvTrace::Get()->Stop(&dropped);
        break;
      }
      default:
        for (int i = 0; i < 5; ++i) {
          (void)Watch::Get()->Describe();
          (void)Metrics::Get()->ToJson();
        }
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back(receive);
  threads.emplace_back(send);
  threads.emplace_back(disturb);
  for (std::thread& thread : threads) thread.join();
  // What an abort has ended on one side waits on the other.
  if (fault < 3) {
    tasks->sender.End(id);
    tasks->receiver.End(id);
  }
  const bool answered = ended.WaitFor(1);
  tasks->sender.End(id);
  tasks->receiver.End(id);
  return answered;
}

int Main(double seconds, uint64_t seed) {
  setenv("TF_FUSE_MAX_PACKED_TENSOR_BYTES", "2048", 1);
  setenv("TF_FUSE_STEP_WAIT_MS", "1", 1);  // The timer takes part.
  setenv("TF_CPP_MIN_LOG_LEVEL", "3", 1);
  // Never destroyed: TensorFlow's threads may still use them at the end.
  auto* tasks = new Tasks;
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin)
        .count();
  };
  int64_t steps = 0;
  for (double shown = 0; elapsed() < seconds;) {
    // Two steps at once, as steps of one job overlap.
    bool answered = false;
    std::thread other([&] { answered = RunStep(tasks, steps + 1, seed + 1); });
    const bool first = RunStep(tasks, steps + 2, seed + 2);
    other.join();
    if (!first || !answered) {
      std::fprintf(stderr, "races_test: not answered: seed %llu\n",
                   static_cast<unsigned long long>(seed));
      return 1;
    }
    steps += 2;
    seed += 2;
    if (elapsed() - shown < 2) continue;
    shown = elapsed();
    std::printf("%lld steps, %.0f of %.0f s\n", static_cast<long long>(steps),
                shown, seconds);
    std::fflush(stdout);
  }
  std::printf("%s\nexecuted %lld steps, clean\n",
              Metrics::Get()->ToJson().c_str(), static_cast<long long>(steps));
  return 0;
}

}  // namespace
}  // namespace testing
}  // namespace tf_fuse

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s SECONDS SEED\n", argv[0]);
    return 2;
  }
  const int status = tf_fuse::testing::Main(
      std::atof(argv[1]), std::strtoull(argv[2], nullptr, 10));
  std::fflush(stdout);
  // TensorFlow's threads do not end.
  _exit(status);
}
