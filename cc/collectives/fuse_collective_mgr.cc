// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/fuse_collective_mgr.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "collectives/algorithm.h"
#include "collectives/chunk_server.h"
#include "collectives/chunk_source.h"
#include "collectives/fuse_remote_access.h"
#include "collectives/peer_card.h"
#include "tensorflow/core/common_runtime/base_collective_executor.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/collective_param_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/device_resolver_distributed.h"

namespace tf_fuse {

using tensorflow::CancellationManager;
using tensorflow::CollectiveParams;
using tensorflow::ConfigProto;
using tensorflow::DeviceAttributes;
using tensorflow::DeviceMgr;
using tensorflow::DeviceResolverDistributed;
using tensorflow::StatusCallback;
using tensorflow::WorkerCacheInterface;

namespace {

// Marks a status: TensorFlow has no implementation of a collective.
constexpr char kUnknown[] = "tf_fuse/unknown_collective";

// Whether TensorFlow has none of it for CPUs. (It names one when it looks for
// it, which is on the leader.)
bool IsUnknown(const CollectiveParams& params) {
  return params.instance.type == tensorflow::REDUCE_SCATTER_COLLECTIVE &&
         params.group.device_type == tensorflow::DeviceType("CPU");
}

// Shows this task's card to the other members of its groups, and chooses
// algorithms by theirs.
class FuseParamResolver
    : public tensorflow::CollectiveParamResolverDistributed {
 public:
  FuseParamResolver(const ConfigProto& config, const DeviceMgr* devices,
                    DeviceResolverDistributed* resolver,
                    WorkerCacheInterface* workers, const std::string& task,
                    const std::string& host, uint64_t token)
      : CollectiveParamResolverDistributed(config, devices, resolver,
                                           /*nccl_communicator=*/nullptr,
                                           workers, task),
        own_prefix_(task + "/"),
        host_(host),
        token_(token) {}

  void CompleteParamsAsync(const DeviceAttributes& device,
                           CollectiveParams* params,
                           CancellationManager* cancellation,
                           const StatusCallback& done) override {
    // A caller that has timed out does not keep them until this is called.
    tensorflow::core::IntrusivePtr<CollectiveParams> kept(params,
                                                          /*add_ref=*/true);
    CollectiveParamResolverDistributed::CompleteParamsAsync(
        WithCard(device), params, cancellation,
        [params, kept = std::move(kept), done](absl::Status status) {
          if (status.ok()) {
            ChooseAlgorithm(params);
          } else if (IsUnknown(*params)) {
            status.SetPayload(kUnknown, absl::Cord());
          }
          done(status);
        });
  }

  void CompleteGroupAsync(const DeviceAttributes& device,
                          tensorflow::CollGroupParams* params,
                          CancellationManager* cancellation,
                          const StatusCallback& done) override {
    CollectiveParamResolverDistributed::CompleteGroupAsync(
        WithCard(device), params, cancellation, done);
  }

 private:
  // The leader of a group completes it for devices of others, too.
  DeviceAttributes WithCard(const DeviceAttributes& device) {
    DeviceAttributes attributes = device;
    if (absl::StartsWith(device.name(), own_prefix_) &&
        !CardOf(device).has_value()) {
      AttachCard(Card(), &attributes);
    }
    return attributes;
  }

  // Made when the first group is: a task without collectives needs no channels.
  const v1::PeerCard& Card() {
    absl::MutexLock lock(&mu_);
    if (card_.version() == 0) {
      card_.set_version(kChannelVersion);
      card_.set_task_token(token_);
      card_.set_serves_grpc(AllowedPaths().grpc);
      card_.set_algorithms(OwnAlgorithms());
      FillInDataPaths(host_, &card_);
    }
    return card_;
  }

  const std::string own_prefix_;
  const std::string host_;
  const uint64_t token_;
  absl::Mutex mu_;
  v1::PeerCard card_;  // Does not change once it is made.
};

// TensorFlow's, but that a collective without an implementation is an error of
// that call alone: each member finds out for itself, so nobody has to be told
// by an abort, which would end all later collectives.
class FuseCollectiveExecutor : public tensorflow::BaseCollectiveExecutor {
 public:
  using BaseCollectiveExecutor::BaseCollectiveExecutor;

  void StartAbort(const absl::Status& status) override {
    if (status.GetPayload(kUnknown).has_value()) return;
    BaseCollectiveExecutor::StartAbort(status);
  }
};

class FuseCollectiveMgr : public tensorflow::RpcCollectiveExecutorMgr {
 public:
  FuseCollectiveMgr(const ConfigProto& config, const DeviceMgr* devices,
                    std::unique_ptr<DeviceResolverDistributed> device_resolver,
                    std::unique_ptr<FuseParamResolver> param_resolver,
                    WorkerCacheInterface* workers, const std::string& task,
                    uint64_t token)
      : RpcCollectiveExecutorMgr(config, devices, std::move(device_resolver),
                                 std::move(param_resolver),
                                 /*nccl_communicator=*/nullptr, workers, task),
        token_(token),
        source_(std::make_shared<ChunkSource>(this)) {
    ChunkSource::Register(token_, source_);
  }

  ~FuseCollectiveMgr() override {
    ChunkSource::Unregister(token_);
    source_->End();
  }

 protected:
  tensorflow::CollectiveExecutor* Create(int64_t step_id) override {
    auto* access =
        new FuseRemoteAccess(dev_mgr_, dev_resolver_.get(), work_queue_,
                             worker_cache_, step_id, task_name_);
    return new FuseCollectiveExecutor(this, access, step_id, dev_mgr_,
                                      work_queue_);
  }

 private:
  const uint64_t token_;
  const std::shared_ptr<ChunkSource> source_;
};

}  // namespace

tensorflow::CollectiveExecutorMgrInterface* CreateFuseCollectiveMgr(
    const ConfigProto& config, const tensorflow::WorkerEnv* env,
    WorkerCacheInterface* workers, const std::string& task,
    const std::string& host) {
  const uint64_t token = RandomNumber();
  auto device_resolver =
      std::make_unique<DeviceResolverDistributed>(env->device_mgr);
  auto param_resolver = std::make_unique<FuseParamResolver>(
      config, env->device_mgr, device_resolver.get(), workers, task, host,
      token);
  return new FuseCollectiveMgr(config, env->device_mgr,
                               std::move(device_resolver),
                               std::move(param_resolver), workers, task, token);
}

}  // namespace tf_fuse
