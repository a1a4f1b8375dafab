// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/peers/probe.h"

#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "transport/message/failed_slots.h"
#include "transport/peers/ask_peer.h"
#include "transport/peers/cluster.h"
#include "transport/peers/peer_channels.h"

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
    probes->peers.emplace(task, state);
  };
  AskPeer(cache, task, device, v1::FuseRecvTensorRequest(), kProbeTimeoutMs,
          record);
}

}  // namespace

std::map<std::string, PeerState> ProbePeers(
    const std::set<std::string>& tasks) {
  PeerChannels::Get()->Want();
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
    return probes->peers.size() >= expected;
  };
  absl::MutexLock lock(&probes->mu);
  probes->mu.AwaitWithTimeout(absl::Condition(&all_answered),
                              absl::Milliseconds(2 * kProbeTimeoutMs));
  for (const auto& [task, state] : probes->peers) peers[task] = state;
  return peers;
}

}  // namespace tf_fuse
