// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The server of the protocol "grpc+fuse": TensorFlow's gRPC server with our
// rendezvous and worker.

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "channel/socket/addresses.h"
#include "collectives/runtime/collective_manager.h"
#include "passes/fuse_recv/options.h"
#include "server/channel_eager_client.h"
#include "server/cluster_functions.h"
#include "server/component_functions.h"
#include "server/fuse_worker.h"
#include "server/loopback.h"
#include "server/server_threads.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/distributed_runtime/session_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache_wrapper.h"
#include "tensorflow/core/platform/logging.h"
#include "transport/fuse_rendezvous.h"
#include "transport/peers/cluster.h"
#include "transport/peers/peer_channels.h"

namespace tf_fuse {

namespace {

using tensorflow::ServerDef;
using tensorflow::WorkerCacheFactoryOptions;
using tensorflow::WorkerCacheInterface;

constexpr char kProtocol[] = "grpc+fuse";

// TensorFlow ends the server's own cache in UpdateServerDef(), while calls may
// be under way; whoever makes calls keeps the cache.
class SharedWorkerCache : public tensorflow::WorkerCacheWrapper {
 public:
  explicit SharedWorkerCache(std::shared_ptr<WorkerCacheInterface> cache)
      : WorkerCacheWrapper(cache.get()), cache_(std::move(cache)) {}
  ~SharedWorkerCache() override {
    if (active_) PeerChannels::Get()->EndRecording();
  }

  const std::shared_ptr<WorkerCacheInterface>& shared() const { return cache_; }

  void SetLogging(bool active) override {
    if (active_.exchange(active) != active) {
      active ? PeerChannels::Get()->BeginRecording()
             : PeerChannels::Get()->EndRecording();
    }
    WorkerCacheWrapper::SetLogging(active);
  }

  absl::Status GetEagerClientCache(
      std::unique_ptr<tensorflow::eager::EagerClientCache>* clients) override {
    const absl::Status status =
        WorkerCacheWrapper::GetEagerClientCache(clients);
    if (status.ok()) *clients = WithChannels(std::move(*clients));
    return status;
  }

 private:
  const std::shared_ptr<WorkerCacheInterface> cache_;
  std::atomic<bool> active_{false};
};

class FuseServer : public tensorflow::GrpcServer, public TaskServer {
 public:
  FuseServer(const ServerDef& server_def, tensorflow::Env* env)
      : GrpcServer(server_def, Marking(env)), host_(HostIn(server_def)) {}

  ~FuseServer() override { RemoveTaskServer(this); }

  absl::Status Init(tensorflow::DeviceMgr* local_device_mgr) {
    tensorflow::GrpcServerOptions options;
    options.local_device_mgr = local_device_mgr;
    options.rendezvous_mgr_func = [](const tensorflow::WorkerEnv* env) {
      return new FuseRendezvousMgr(env);
    };
    FuseWorker* worker = nullptr;
    options.worker_func = [&worker](tensorflow::WorkerEnv* env,
                                    const tensorflow::ConfigProto& config) {
      auto made = std::make_unique<FuseWorker>(env, config);
      worker = made.get();
      return std::unique_ptr<tensorflow::GrpcWorker>(std::move(made));
    };
    collectives_ = std::make_shared<CollectiveTask>(task());
    options.collective_mgr_func = [this](const tensorflow::ConfigProto& config,
                                         const tensorflow::WorkerEnv* env,
                                         WorkerCacheInterface* workers) {
      auto* const cache = static_cast<SharedWorkerCache*>(workers);
      return CreateFuseCollectiveMgr(config, env, cache->shared(), OwnHost(),
                                     collectives_)
          .release();
    };
    const absl::Status status = GrpcServer::Init(options);
    if (!status.ok()) return status;
    // Never destroyed: handlers may run until the process exits.
    worker_env()->compute_pool =
        new tensorflow::thread::ThreadPool(new ServerThreads(
            worker_env()->env, worker_env()->compute_pool->NumThreads()));
    worker->set_component_functions(
        ComponentFunctions(this, worker_env()->compute_pool));
    AnswerOnCallingThread(grpc_worker_env());
    AddTaskServer(this);
    return status;
  }

  // In place of TensorFlow's, which puts a manager of collectives of its own in
  // the place of ours, and ends ours, whoever uses it: peers that wait for this
  // task, and calls that are under way, would never be answered.
  absl::Status UpdateServerDef(const ServerDef& server_def) override;

  absl::Status AddMasterEagerContextToEagerService(
      tensorflow::uint64 context_id,
      tensorflow::EagerContext* context) override {
    master_context_ = context;  // It is connected when the server starts.
    // No task asks a coordinator for its card.
    if (ParseFuseOptions(server_def().default_session_config()).do_fuse_recv) {
      PeerChannels::Get()->Want();
    }
    return GrpcServer::AddMasterEagerContextToEagerService(context_id, context);
  }

  absl::Status Start() override {
    if (master_context_ != nullptr) ReserveClusterFunctions(master_context_);
    master_context_ = nullptr;
    return GrpcServer::Start();
  }

  // (An update changes the cluster, but not which of its tasks this is.)
  std::string task() const override {
    return absl::StrCat("/job:", server_def().job_name(),
                        "/replica:", server_def().replica(),
                        "/task:", server_def().task_index());
  }

  std::string OwnHost() const override {
    absl::MutexLock lock(&cluster_mu_);
    return host_;
  }

  // From a cache of our own.
  std::shared_ptr<WorkerCacheInterface> Workers() override {
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

  std::map<std::string, std::string> AddressesOfTasks() const override {
    std::map<std::string, std::string> addresses;
    absl::MutexLock lock(&cluster_mu_);
    for (const auto& job : cluster_.cluster_def.job()) {
      for (const auto& [index, address] : job.tasks()) {
        const std::string task =
            absl::StrCat("/job:", job.name(), "/replica:0/task:", index);
        addresses[task] = address;
      }
    }
    return addresses;
  }

  tensorflow::Device* HostDevice() override {
    return worker_env()->device_mgr->HostCPU();
  }

 protected:
  void MaybeMutateBuilder(grpc::ServerBuilder* builder,
                          int requested_port) override {
    if (IsOnLoopback(server_def())) ListenOnLoopback(builder);
  }

  // Called whenever a session or an eager context learns of the cluster.
  absl::Status WorkerCacheFactory(const WorkerCacheFactoryOptions& options,
                                  WorkerCacheInterface** cache) override {
    {
      absl::MutexLock lock(&cluster_mu_);
      cluster_ = options;
      has_cluster_ = !options.job_name.empty();
      probe_cache_.reset();
    }
    PeerChannels::Get()->ForgetAll();  // Other tasks may have these names now.
    WorkerCacheInterface* made = nullptr;
    const absl::Status status = GrpcServer::WorkerCacheFactory(options, &made);
    if (!status.ok()) return status;
    *cache = new SharedWorkerCache(std::shared_ptr<WorkerCacheInterface>(made));
    return absl::OkStatus();
  }

 private:
  // Never destroyed, as TensorFlow's own.
  static tensorflow::Env* Marking(tensorflow::Env* env) {
    static auto* const marking = new ServerEnv(env);
    return marking;
  }

  static std::string HostIn(const ServerDef& server_def) {
    for (const auto& job : server_def.cluster().job()) {
      if (job.name() != server_def.job_name()) continue;
      auto found = job.tasks().find(server_def.task_index());
      if (found == job.tasks().end()) continue;
      const absl::StatusOr<HostAndPort> where = Split(found->second);
      return where.ok() ? where->host : "";
    }
    return "";
  }

  std::shared_ptr<CollectiveTask> collectives_;
  tensorflow::EagerContext* master_context_ = nullptr;  // until Start()
  absl::Mutex update_mu_;

  mutable absl::Mutex cluster_mu_;
  std::string host_ ABSL_GUARDED_BY(cluster_mu_);
  WorkerCacheFactoryOptions cluster_ ABSL_GUARDED_BY(cluster_mu_);
  bool has_cluster_ ABSL_GUARDED_BY(cluster_mu_) = false;
  std::shared_ptr<WorkerCacheInterface> probe_cache_
      ABSL_GUARDED_BY(cluster_mu_);
};

absl::Status FuseServer::UpdateServerDef(const ServerDef& server_def) {
  absl::MutexLock lock(&update_mu_);
  WorkerCacheInterface* cache = nullptr;
  const absl::Status status =
      WorkerCacheFactory(WorkerCacheFactoryOptions(server_def), &cache);
  if (!status.ok()) return status;
  const std::shared_ptr<WorkerCacheInterface> shared =
      static_cast<SharedWorkerCache*>(cache)->shared();
  const std::string host = HostIn(server_def);
  {
    absl::MutexLock cluster_lock(&cluster_mu_);
    host_ = host;
  }
  master_env()->worker_cache = cache;
  worker_env()->session_mgr->ResetDefaultWorkerCache(cache);
  return RenewCollectives(
      worker_env()->collective_executor_mgr.get(),
      server_def.default_session_config(), shared, host,
      absl::AbortedError(absl::StrCat(
          "the collectives of ", task(),
          " began anew while this one was under way: the program made another "
          "strategy or enabled collectives once more")));
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

tensorflow::ServerFactory* RegisterFactory() {
  auto* factory = new FuseServerFactory;
  tensorflow::ServerFactory::Register("TF_FUSE_GRPC_SERVER", factory);
  return factory;
}

[[maybe_unused]] tensorflow::ServerFactory* const kFactory = RegisterFactory();

}  // namespace

}  // namespace tf_fuse
