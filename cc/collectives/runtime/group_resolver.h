// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Resolves collective groups under the protocol "grpc+fuse": as TensorFlow
// does, with the cards of the members. Its errors name the member that others
// waited for in vain.

#ifndef TF_FUSE_CC_COLLECTIVES_RUNTIME_GROUP_RESOLVER_H_
#define TF_FUSE_CC_COLLECTIVES_RUNTIME_GROUP_RESOLVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "collectives/runtime/idle_instances.h"
#include "collectives/runtime/joins.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/collective_param_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/device_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

// Marks a status: TensorFlow has no implementation of a collective.
inline constexpr char kUnknownCollective[] = "tf_fuse/unknown_collective";

// Shows this task's card to the other members of its groups, and chooses
// algorithms by theirs.
class FuseParamResolver
    : public tensorflow::CollectiveParamResolverDistributed {
 public:
  FuseParamResolver(const tensorflow::ConfigProto& config,
                    const tensorflow::DeviceMgr* devices,
                    tensorflow::DeviceResolverDistributed* resolver,
                    std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
                    const std::string& task, const std::string& host,
                    uint64_t token, std::shared_ptr<Joins> joins);

  // Takes over those that wait for this task to begin anew; if it is called
  // once more, those that have come since.
  void JoinEarly();

  void CompleteParamsAsync(const tensorflow::DeviceAttributes& device,
                           tensorflow::CollectiveParams* params,
                           tensorflow::CancellationManager* cancellation,
                           const tensorflow::StatusCallback& done) override;
  void CompleteGroupAsync(const tensorflow::DeviceAttributes& device,
                          tensorflow::CollGroupParams* params,
                          tensorflow::CancellationManager* cancellation,
                          const tensorflow::StatusCallback& done) override;
  void CompleteInstanceAsync(const tensorflow::CompleteInstanceRequest* request,
                             tensorflow::CompleteInstanceResponse* response,
                             tensorflow::CancellationManager* cancellation,
                             const tensorflow::StatusCallback& done) override;
  void StartAbort(const absl::Status& status) override;

  // The groups that wait for members at this task, their leader.
  v1::WaitingGroups Waiting();

  // A sentence for an error: the members that have come to a group that is not
  // complete, and the tasks from which none has. Asks the leader, and waits
  // some seconds at most; empty if the leader runs no plugin that answers.
  std::string WhoHasCome(int32_t group_key);

 private:
  struct EarlyJoin;

  // Answers a request for an instance, as TensorFlow does.
  void AnswerInstance(const tensorflow::CompleteInstanceRequest* request,
                      tensorflow::CompleteInstanceResponse* response,
                      tensorflow::CancellationManager* cancellation,
                      tensorflow::StatusCallback done);
  // A call that used an instance has ended.
  void EndUse(const IdleInstances::Key& key);
  // A group that devices joined early is complete, or has failed.
  void JoinBroadcasts(const std::shared_ptr<EarlyJoin>& early);
  // Whether a device has joined a group.
  bool IsMember(const tensorflow::DeviceAttributes& device, int32_t group_key);
  // The leader of a group completes it for devices of others, too.
  tensorflow::DeviceAttributes WithCard(
      const tensorflow::DeviceAttributes& device);
  // Made when the first group is: a task without collectives needs no channels.
  const v1::PeerCard& Card();
  // Adds who has come, if a member that gave up ended the group for all.
  absl::Status Named(const absl::Status& status, int32_t group_key);
  std::string Describe(const v1::WaitingGroups& groups, int32_t group_key);

  const std::shared_ptr<tensorflow::WorkerCacheInterface> workers_;
  const std::string own_prefix_;
  const std::string host_;
  const uint64_t token_;
  const std::shared_ptr<Joins> joins_;
  IdleInstances instances_;
  absl::Mutex mu_;
  v1::PeerCard card_;  // Does not change once it is made.
  // By group that devices joined early and that is not complete: the instances
  // that they ask for meanwhile.
  std::map<int32_t, std::vector<std::function<void()>>> early_instances_
      ABSL_GUARDED_BY(mu_);
  // By group and incarnation of the device: how many broadcasts.
  std::map<std::pair<int32_t, uint64_t>, size_t> taken_over_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_RUNTIME_GROUP_RESOLVER_H_
