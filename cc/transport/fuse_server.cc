// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/fuse_server.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/fuse_collective_mgr.h"
#include "frame/frame.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/logging.h"
#include "transport/ask_peer.h"
#include "transport/features.h"
#include "transport/fuse_rendezvous.h"
#include "transport/fuse_status.h"
#include "transport/fuse_worker.h"
#include "transport/limits.h"
#include "transport/tensor_frame.h"

namespace tf_fuse {

namespace {

using tensorflow::ServerDef;
using tensorflow::WorkerCacheFactoryOptions;
using tensorflow::WorkerCacheInterface;

constexpr char kProtocol[] = "grpc+fuse";

// A peer that does not answer is treated as one without the plugin. It delays
// the first run of a function by this much, and no later one.
constexpr int kProbeTimeoutMs = 5000;

class FuseServer;

// The servers of this process. Tests may run several.
class ServerRegistry {
 public:
  void Add(FuseServer* server) {
    absl::MutexLock lock(&mu_);
    servers_.push_back(server);
  }
  void Remove(FuseServer* server) {
    absl::MutexLock lock(&mu_);
    servers_.erase(std::remove(servers_.begin(), servers_.end(), server),
                   servers_.end());
  }
  bool empty() const {
    absl::MutexLock lock(&mu_);
    return servers_.empty();
  }
  // The tasks that this process runs.
  std::set<std::string> LocalTasks() const;
  // The newest server: in a process that has only one, that one.
  std::shared_ptr<WorkerCacheInterface> ProbeCache(tensorflow::Device** device);
  std::string OwnHost() const;
  // As that server knows them.
  std::map<std::string, std::string> HostsOfTasks() const;

  static ServerRegistry* Get() {
    static ServerRegistry* registry = new ServerRegistry;
    return registry;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<FuseServer*> servers_ ABSL_GUARDED_BY(mu_);
};

class FuseServer : public tensorflow::GrpcServer {
 public:
  FuseServer(const ServerDef& server_def, tensorflow::Env* env)
      : GrpcServer(server_def, env) {}

  ~FuseServer() override { ServerRegistry::Get()->Remove(this); }

  absl::Status Init(tensorflow::DeviceMgr* local_device_mgr) {
    tensorflow::GrpcServerOptions options;
    options.local_device_mgr = local_device_mgr;
    options.rendezvous_mgr_func = [](const tensorflow::WorkerEnv* env) {
      return new FuseRendezvousMgr(env);
    };
    options.worker_func = [](tensorflow::WorkerEnv* env,
                             const tensorflow::ConfigProto& config) {
      return std::unique_ptr<tensorflow::GrpcWorker>(
          new FuseWorker(env, config));
    };
    options.collective_mgr_func = [this](const tensorflow::ConfigProto& config,
                                         const tensorflow::WorkerEnv* env,
                                         WorkerCacheInterface* workers) {
      return CreateFuseCollectiveMgr(config, env, workers, task(), OwnHost());
    };
    const absl::Status status = GrpcServer::Init(options);
    if (status.ok()) ServerRegistry::Get()->Add(this);
    return status;
  }

  std::string task() const {
    return absl::StrCat("/job:", server_def().job_name(),
                        "/replica:", server_def().replica(),
                        "/task:", server_def().task_index());
  }

  // By which other tasks reach this one; empty if the cluster does not say.
  std::string OwnHost() const {
    for (const auto& job : server_def().cluster().job()) {
      if (job.name() != server_def().job_name()) continue;
      auto found = job.tasks().find(server_def().task_index());
      if (found != job.tasks().end()) return HostOfAddress(found->second);
    }
    return "";
  }

  // A cache of our own for the cluster as last seen, to ask peers with.
  std::shared_ptr<WorkerCacheInterface> ProbeCache() {
    absl::MutexLock lock(&cluster_mu_);
    if (probe_cache_ == nullptr && has_cluster_) {
      WorkerCacheInterface* cache = nullptr;
      const absl::Status status =
          GrpcServer::WorkerCacheFactory(cluster_, &cache);
      if (!status.ok()) {
        LOG(WARNING) << "tf_fuse: cannot reach the cluster's tasks: " << status;
        return nullptr;
      }
      probe_cache_.reset(cache);
    }
    return probe_cache_;
  }

  std::map<std::string, std::string> HostsOfTasks() {
    std::map<std::string, std::string> hosts;
    absl::MutexLock lock(&cluster_mu_);
    for (const auto& job : cluster_.cluster_def.job()) {
      for (const auto& [index, address] : job.tasks()) {
        const std::string task =
            absl::StrCat("/job:", job.name(), "/replica:0/task:", index);
        hosts[task] = HostOfAddress(address);
      }
    }
    return hosts;
  }

 protected:
  // Called whenever a session or an eager context learns of the cluster.
  absl::Status WorkerCacheFactory(const WorkerCacheFactoryOptions& options,
                                  WorkerCacheInterface** cache) override {
    {
      absl::MutexLock lock(&cluster_mu_);
      cluster_ = options;
      has_cluster_ = !options.job_name.empty();
      probe_cache_.reset();
    }
    return GrpcServer::WorkerCacheFactory(options, cache);
  }

 private:
  absl::Mutex cluster_mu_;
  WorkerCacheFactoryOptions cluster_ ABSL_GUARDED_BY(cluster_mu_);
  bool has_cluster_ ABSL_GUARDED_BY(cluster_mu_) = false;
  std::shared_ptr<WorkerCacheInterface> probe_cache_
      ABSL_GUARDED_BY(cluster_mu_);
};

std::set<std::string> ServerRegistry::LocalTasks() const {
  absl::MutexLock lock(&mu_);
  std::set<std::string> tasks;
  for (const FuseServer* server : servers_) tasks.insert(server->task());
  return tasks;
}

std::shared_ptr<WorkerCacheInterface> ServerRegistry::ProbeCache(
    tensorflow::Device** device) {
  absl::MutexLock lock(&mu_);
  if (servers_.empty()) return nullptr;
  *device = servers_.back()->worker_env()->device_mgr->HostCPU();
  return servers_.back()->ProbeCache();
}

std::string ServerRegistry::OwnHost() const {
  absl::MutexLock lock(&mu_);
  return servers_.empty() ? "" : servers_.back()->OwnHost();
}

std::map<std::string, std::string> ServerRegistry::HostsOfTasks() const {
  absl::MutexLock lock(&mu_);
  if (servers_.empty()) return {};
  return servers_.back()->HostsOfTasks();
}

class FuseServerFactory : public tensorflow::ServerFactory {
 public:
  bool AcceptsOptions(const ServerDef& server_def) override {
    return server_def.protocol() == kProtocol;
  }

  absl::Status NewServer(
      const ServerDef& server_def, const Options& options,
      std::unique_ptr<tensorflow::ServerInterface>* out_server) override {
    auto server =
        std::make_unique<FuseServer>(server_def, tensorflow::Env::Default());
    const absl::Status status = server->Init(options.local_device_mgr);
    if (!status.ok()) {
      LOG(ERROR) << status;
      return status;
    }
    *out_server = std::move(server);
    return absl::OkStatus();
  }
};

// The answers of one round of probes. Outlives late answers.
struct Probes {
  absl::Mutex mu;
  std::map<std::string, Peer> peers ABSL_GUARDED_BY(mu);
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
                                     const tensorflow::Tensor& answer) {
    Peer peer{StateOf(status), Features()};
    const bool fused = peer.state == PeerState::kFused;
    if (fused) peer.features = FeaturesOfAnswer(answer);
    absl::MutexLock lock(&probes->mu);
    Peer& known = probes->peers.try_emplace(task, peer).first->second;
    if (!fused) known = peer;
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
      probes->peers[task].state != PeerState::kFused) {
    return std::nullopt;
  }
  return absl::ToDoubleMicroseconds(absl::Now() - begin);
}

// 0 if no peer of the cluster has the plugin.
double MeasureRpcMicros() {
  constexpr int kCalls = 16;
  constexpr int kRounds = 5;
  tensorflow::Device* device = nullptr;
  const std::shared_ptr<WorkerCacheInterface> cache =
      ServerRegistry::Get()->ProbeCache(&device);
  if (cache == nullptr || device == nullptr) return 0;
  std::vector<std::string> tasks;
  cache->ListWorkers(&tasks);
  const std::set<std::string> local = ServerRegistry::Get()->LocalTasks();
  // All at once: one that has stopped takes as long as a probe may.
  for (const auto& [task, peer] : ProbePeers({tasks.begin(), tasks.end()})) {
    if (peer.state != PeerState::kFused || local.count(task) > 0) continue;
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

tensorflow::ServerFactory* RegisterFactory() {
  auto* factory = new FuseServerFactory;
  tensorflow::ServerFactory::Register("TF_FUSE_GRPC_SERVER", factory);
  return factory;
}

[[maybe_unused]] tensorflow::ServerFactory* const kFactory = RegisterFactory();

}  // namespace

bool HasFuseServer() { return !ServerRegistry::Get()->empty(); }

std::set<std::string> LocalTasks() {
  return ServerRegistry::Get()->LocalTasks();
}

std::string OwnHost() { return ServerRegistry::Get()->OwnHost(); }

Hosts ClusterHosts() {
  return {ServerRegistry::Get()->HostsOfTasks(),
          tensorflow::port::MaxParallelism()};
}

std::shared_ptr<WorkerCacheInterface> ClusterWorkers(
    tensorflow::Device** device) {
  return ServerRegistry::Get()->ProbeCache(device);
}

std::map<std::string, Peer> ProbePeers(const std::set<std::string>& tasks) {
  std::map<std::string, Peer> peers;
  std::set<std::string> remote;
  const std::set<std::string> local = ServerRegistry::Get()->LocalTasks();
  for (const std::string& task : tasks) {
    if (local.count(task) > 0) {
      peers[task] = {PeerState::kFused, OwnFeatures()};
      continue;
    }
    peers[task] = Peer();
    remote.insert(task);
  }
  if (remote.empty()) return peers;
  tensorflow::Device* device = nullptr;
  const std::shared_ptr<WorkerCacheInterface> cache =
      ServerRegistry::Get()->ProbeCache(&device);
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
  for (const auto& [task, peer] : probes->peers) peers[task] = peer;
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
