// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/peers/probe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tensorflow/core/platform/logging.h"
#include "transport/message/failed_slots.h"
#include "transport/peers/ask_peer.h"
#include "transport/peers/cluster.h"

namespace tf_fuse {

using tensorflow::WorkerCacheInterface;

namespace {

// A peer that does not answer is treated as one without the plugin. It delays
// the first run of a function by this much, and no later one.
constexpr int kProbeTimeoutMs = 5000;

// The answers of one round of probes. Outlives late answers.
struct Probes {
  absl::Mutex mu;
  std::map<std::string, PeerState> peers ABSL_GUARDED_BY(mu);
  size_t answers ABSL_GUARDED_BY(mu) = 0;
};

PeerState StateOf(const absl::Status& status) {
  if (status.ok()) return PeerState::kFused;
  // A version that cannot be served counts as no plugin: receive one by one.
  if (IsAnswerOfPlainPeer(status) || absl::IsFailedPrecondition(status)) {
    return PeerState::kPlain;
  }
  return PeerState::kUnreachable;
}

void StartProbe(const std::string& task,
                const std::shared_ptr<WorkerCacheInterface>& cache,
                tensorflow::Device* device,
                const std::shared_ptr<Probes>& probes) {
  const auto record = [probes, task](const absl::Status& status,
                                     const tensorflow::Tensor&) {
    const PeerState state = StateOf(status);
    absl::MutexLock lock(&probes->mu);
    const auto [known, first] = probes->peers.try_emplace(task, state);
    // One of several probes that fails decides.
    if (!first && state != PeerState::kFused) known->second = state;
    ++probes->answers;
  };
  AskPeer(cache, task, device, v1::FuseRecvTensorRequest(), kProbeTimeoutMs,
          record);
}

// Sends `calls` probes to one task at once; the time until all are answered, or
// nothing if one fails.
std::optional<double> TimeProbes(
    const std::string& task, int calls,
    const std::shared_ptr<WorkerCacheInterface>& cache,
    tensorflow::Device* device) {
  auto probes = std::make_shared<Probes>();
  const absl::Time begin = absl::Now();
  for (int i = 0; i < calls; ++i) StartProbe(task, cache, device, probes);
  auto all_answered = [&probes, calls]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return probes->answers >= static_cast<size_t>(calls);
  };
  absl::MutexLock lock(&probes->mu);
  if (!probes->mu.AwaitWithTimeout(absl::Condition(&all_answered),
                                   absl::Milliseconds(2 * kProbeTimeoutMs)) ||
      probes->peers.at(task) != PeerState::kFused) {
    return std::nullopt;
  }
  return absl::ToDoubleMicroseconds(absl::Now() - begin);
}

// 0 if no peer of the cluster has the plugin.
double MeasureRpcMicros() {
  constexpr int kCalls = 16;
  constexpr int kRounds = 5;
  tensorflow::Device* device = nullptr;
  const std::shared_ptr<WorkerCacheInterface> cache = ClusterWorkers(&device);
  if (cache == nullptr || device == nullptr) return 0;
  std::vector<std::string> tasks;
  cache->ListWorkers(&tasks);
  const std::set<std::string> local = LocalTasks();
  // All at once: one that has stopped takes as long as a probe may.
  for (const auto& [task, state] : ProbePeers({tasks.begin(), tasks.end()})) {
    if (state != PeerState::kFused || local.count(task) > 0) continue;
    // The least of each: whatever else the machines do only adds.
    double one = std::numeric_limits<double>::infinity();
    double many = one;
    for (int round = 0; round < kRounds; ++round) {
      one = std::min(one, TimeProbes(task, 1, cache, device).value_or(one));
      many = std::min(many,
                      TimeProbes(task, kCalls, cache, device).value_or(many));
    }
    if (std::isinf(one) || std::isinf(many)) continue;
    // What the way there and back takes does not delay other calls.
    const double micros = std::max(1.0, (many - one) / (kCalls - 1));
    VLOG(1) << "tf_fuse: a call to " << task << " takes " << one
            << " us and delays others by " << micros << " us";
    return micros;
  }
  return 0;
}

}  // namespace

std::map<std::string, PeerState> ProbePeers(
    const std::set<std::string>& tasks) {
  std::map<std::string, PeerState> peers;
  std::set<std::string> remote;
  const std::set<std::string> local = LocalTasks();
  for (const std::string& task : tasks) {
    if (local.count(task) > 0) {
      peers[task] = PeerState::kFused;
      continue;
    }
    peers[task] = PeerState::kUnreachable;
    remote.insert(task);
  }
  if (remote.empty()) return peers;
  tensorflow::Device* device = nullptr;
  const std::shared_ptr<WorkerCacheInterface> cache = ClusterWorkers(&device);
  if (cache == nullptr || device == nullptr) return peers;
  auto probes = std::make_shared<Probes>();
  for (const std::string& task : remote) {
    StartProbe(task, cache, device, probes);
  }
  // The RPCs carry their own deadline; this one guards against a lost answer.
  const size_t expected = remote.size();
  auto all_answered = [&probes, expected]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return probes->answers >= expected;
  };
  absl::MutexLock lock(&probes->mu);
  probes->mu.AwaitWithTimeout(absl::Condition(&all_answered),
                              absl::Milliseconds(2 * kProbeTimeoutMs));
  for (const auto& [task, state] : probes->peers) peers[task] = state;
  return peers;
}

double MeasuredRpcMicros(double otherwise) {
  static absl::Mutex mu(absl::kConstInit);
  static double measured ABSL_GUARDED_BY(mu) = 0;
  static absl::Time next_try ABSL_GUARDED_BY(mu) = absl::InfinitePast();
  absl::MutexLock lock(&mu);
  // Where no peer answers, not every function that is traced waits for one.
  if (measured == 0 && absl::Now() >= next_try) {
    measured = MeasureRpcMicros();
    next_try = absl::Now() + absl::Minutes(1);
  }
  return measured > 0 ? measured : otherwise;
}

}  // namespace tf_fuse
