// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Steps of two tasks whose parts run on several threads: begin, send, receive
// (together, dynamically, singly), abort, cancel, look on.
// ThreadSanitizer reports what is not ordered.
//
//   races_test SECONDS SEED

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "frame/frame_testing.h"
#include "tensorflow/core/framework/cancellation.h"
#include "testing/loopback_tasks.h"
#include "testing/program_main.h"
#include "testing/tensor_values.h"
#include "transport/receiver/fused_recv.h"
#include "transport/watch/recv_trace.h"
#include "transport/watch/watch.h"

namespace tf_fuse {
namespace testing {

// tsan_hooks.cc.
std::unique_ptr<FuseRendezvousMgr> MakeWatchedMgr(
    const tensorflow::WorkerEnv* env);

namespace {

using frame::testing::Random;
using tensorflow::Rendezvous;

struct Tasks {
  Tasks() { to_receiver->set_wire(&back); }

  // The sender's own, by which it asks whether the receiver still waits.
  LoopbackWorkers* const to_receiver = new LoopbackWorkers;
  Task sender{"/job:ps/replica:0/task:0", 1, 2,
              std::unique_ptr<LoopbackWorkers>(to_receiver), &MakeWatchedMgr};
  Loopback wire{&sender};
  Task receiver{"/job:worker/replica:0/task:0", 2, 2,
                std::make_unique<LoopbackWorkers>(&wire), &MakeWatchedMgr};
  Loopback back{&receiver};
};

std::shared_ptr<const FusedKeys> Keys(Tasks* tasks,
                                      std::vector<std::string> names) {
  auto keys = std::make_shared<FusedKeys>();
  keys->send_device = tasks->sender.device_name();
  keys->send_device_incarnation = 1;
  keys->recv_device = tasks->receiver.device_name();
  keys->tensor_names = std::move(names);
  keys->copy_out.resize(keys->tensor_names.size());
  for (const std::string& name : keys->tensor_names) {
    const Slot value = ValueOf(name);
    keys->types.push_back(value.is_dead ? tensorflow::DT_FLOAT
                                        : value.tensor.dtype());
  }
  if (!FinishFusedKeys(keys.get()).ok()) std::abort();
  return keys;
}

// Whether the values are those that were sent, unless there was an error.
bool AreRight(const FusedKeys& keys, const absl::Status& status,
              const std::vector<Slot>& slots) {
  if (!status.ok()) return true;
  if (slots.size() != keys.tensor_names.size()) return false;
  for (size_t i = 0; i < slots.size(); ++i) {
    const Slot expected = ValueOf(keys.tensor_names[i]);
    if (SameValue(slots[i], expected)) continue;
    std::fprintf(stderr, "races_test: %s: received %s%s, expected %s%s\n",
                 keys.tensor_names[i].c_str(), slots[i].is_dead ? "dead " : "",
                 slots[i].tensor.DebugString().c_str(),
                 expected.is_dead ? "dead " : "",
                 expected.tensor.DebugString().c_str());
    return false;
  }
  return true;
}

// A step, its parts at once.
class Step {
 public:
  Step(Tasks* tasks, int64_t id, uint64_t seed) : tasks_(tasks), id_(id) {
    Random random(seed);
    fault_ = static_cast<Fault>(random.Below(kFaults));
    way_ = static_cast<Way>(random.Below(3));
    std::vector<std::string> names;
    for (uint64_t n = 1 + random.Below(20); n > 0; --n) {
      names.push_back(absl::StrCat("edge_", n));
      values_.push_back(ValueOf(names.back()));
    }
    keys_ = Keys(tasks_, names);
    if (way_ == kGroup) {
      receives_.push_back(keys_);
      return;
    }
    for (const std::string& name : names) {
      receives_.push_back(Keys(tasks_, {name}));
    }
  }

  // Returns whether all receives were answered, and rightly.
  bool Run() {
    (void)tasks_->receiver.Begin(id_);
    std::vector<std::thread> threads;
    threads.emplace_back([this] { Receive(0); });
    threads.emplace_back([this] { Receive(1); });
    threads.emplace_back([this] { Send(); });
    threads.emplace_back([this] { Disturb(); });
    for (std::thread& thread : threads) thread.join();
    // What an abort has ended on one side waits on the other.
    if (fault_ <= kLastAbort) End();
    const bool answered = ended_.WaitFor(receives_.size());
    if (!answered) {
      std::fprintf(stderr,
                   "races_test: step %lld: not answered: way %d, fault %d\n",
                   static_cast<long long>(id_), way_, fault_);
    }
    End();
    return answered && right_.load(std::memory_order_relaxed);
  }

 private:
  // How its tensors are received.
  enum Way { kGroup, kDynamic, kSingles };
  enum Fault {
    kAbortSender,
    kAbortReceiver,
    kAbortWithoutSender,  // Which does not begin: only the abort answers.
    kCancel,
    kLastAbort = kCancel,
    kTrace,
    kStopTrace,
    kLook,
    kFaults = kLook + 3
  };

  // Every second one, from `first` on.
  void Receive(size_t first) {
    Rendezvous::Args args;
    args.cancellation_manager = &cancellation_;
    const auto step = tasks_->receiver.Step(id_);
    for (size_t i = first; i < receives_.size(); i += 2) {
      const auto done = [this, i](const absl::Status& status,
                                  std::vector<Slot> slots) {
        if (!AreRight(*receives_[i], status, slots)) {
          right_.store(false, std::memory_order_relaxed);
        }
        ended_.Add();
      };
      switch (way_) {
        case kGroup:
          step->RecvFusedAsync(receives_[i], {0, 0}, args, done);
          break;
        case kDynamic:
          step->RecvDynamicAsync(receives_[i], {0, 0}, args, done);
          break;
        case kSingles:
          RecvOneByOne(step.get(), receives_[i], {0, 0}, args, done);
      }
    }
  }

  void Send() {
    if (fault_ == kAbortWithoutSender) return;
    (void)tasks_->sender.Begin(id_);
    const auto step = tasks_->sender.Step(id_);
    for (size_t i = 0; i < keys_->tensor_names.size(); ++i) {
      Rendezvous::ParsedKey key;
      if (!ParseSlotKey(*keys_, i, {0, 0}, &key).ok()) std::abort();
      (void)step->Send(key, Rendezvous::Args(), values_[i].tensor,
                       values_[i].is_dead);
    }
  }

  void Disturb() {
    switch (fault_) {
      case kAbortSender:
        tasks_->sender.Step(id_)->StartAbort(absl::InternalError("sender"));
        break;
      case kAbortReceiver:
      case kAbortWithoutSender:
        tasks_->receiver.Step(id_)->StartAbort(absl::InternalError("receiver"));
        break;
      case kCancel:
        cancellation_.StartCancel();
        break;
      case kTrace:
        RecvTrace::Get()->Start();
        break;
      case kStopTrace: {
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
  }

  void End() {
    tasks_->sender.End(id_);
    tasks_->receiver.End(id_);
  }

  Tasks* const tasks_;
  const int64_t id_;
  Way way_;
  Fault fault_;
  std::shared_ptr<const FusedKeys> keys_;  // Of all tensors.
  std::vector<std::shared_ptr<const FusedKeys>> receives_;
  tensorflow::CancellationManager cancellation_;
  Ended ended_;
  std::atomic<bool> right_{true};
  // Of `keys_`. Made before and kept until after: that TensorFlow sends them
  // again, singly, and drops them is ordered by its own locks.
  std::vector<Slot> values_;
};

// Whether nothing waits any more. (A receive that is cancelled ends at once;
// its request does when the sender answers it.)
bool ComesToRest() {
  const Metrics& metrics = *Metrics::Get();
  for (int tries = 0; tries < 600; ++tries) {
    if (metrics.pending_requests.load() == 0 &&
        metrics.pending_receives.load() == 0) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::fprintf(stderr, "races_test: still waits: %s\n",
               metrics.ToJson().c_str());
  return false;
}

int Main(double seconds, uint64_t seed) {
  setenv("TF_FUSE_MAX_PACKED_TENSOR_BYTES", "2048", 1);
  setenv("TF_FUSE_STEP_WAIT_MS", "1", 1);  // The timer takes part.
  setenv("TF_CPP_MIN_LOG_LEVEL", "3", 1);
  // Never destroyed: TensorFlow's threads may still use them at the end.
  auto* tasks = new Tasks;
  tasks->wire.set_ends_cancelled(true);
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin)
        .count();
  };
  int64_t steps = 0;
  for (double shown = 0; elapsed() < seconds;) {
    // Two steps at once, as steps of one job overlap.
    Step first(tasks, steps + 1, seed + 1);
    Step second(tasks, steps + 2, seed + 2);
    bool first_is_right = false;
    std::thread other([&] { first_is_right = first.Run(); });
    const bool second_is_right = second.Run();
    other.join();
    if (!first_is_right || !second_is_right) {
      std::fprintf(stderr, "races_test: failed: seed %llu\n",
                   static_cast<unsigned long long>(seed));
      _exit(1);  // The steps must not go: what waits may still be answered.
    }
    steps += 2;
    seed += 2;
    if (elapsed() - shown < 2) continue;
    shown = elapsed();
    std::printf("%lld steps, %.0f of %.0f s\n", static_cast<long long>(steps),
                shown, seconds);
    std::fflush(stdout);
  }
  if (!ComesToRest()) return 1;
  std::printf("%s\nexecuted %lld steps, clean\n",
              Metrics::Get()->ToJson().c_str(), static_cast<long long>(steps));
  return 0;
}

}  // namespace
}  // namespace testing
}  // namespace tf_fuse

int main(int argc, char** argv) {
  return tf_fuse::testing::RunForSeconds(argc, argv, &tf_fuse::testing::Main);
}
