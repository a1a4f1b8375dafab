// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Manages the collectives of a task that runs the protocol "grpc+fuse":
// TensorFlow's executors and group resolution, with the remote access of
// tf_fuse.

#ifndef TF_FUSE_CC_COLLECTIVES_RUNTIME_COLLECTIVE_MANAGER_H_
#define TF_FUSE_CC_COLLECTIVES_RUNTIME_COLLECTIVE_MANAGER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "collectives/remote_access/calls_under_way.h"
#include "collectives/remote_access/step_chunks.h"
#include "tensorflow/core/distributed_runtime/rpc_collective_executor_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

class Joins;

// What a task keeps as long as its server runs, however often TensorFlow begins
// the task's collectives anew: peers that do not begin anew with it still find
// it.
struct CollectiveTask {
  // Makes it known to data channels.
  explicit CollectiveTask(std::string name);
  ~CollectiveTask();

  const std::string name;
  const uint64_t token;
  const std::shared_ptr<StepChunks> source;
  const std::shared_ptr<Joins> joins;
};

// A manager for GrpcServerOptions::collective_mgr_func. `host` is the name or
// address by which others reach it. It stays as long as the server; what it
// hands all on to is made anew by RenewCollectives(), and with the executors
// that that makes keeps `workers`.
std::unique_ptr<tensorflow::CollectiveExecutorMgrInterface>
CreateFuseCollectiveMgr(
    const tensorflow::ConfigProto& config, const tensorflow::WorkerEnv* env,
    std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
    const std::string& host, const std::shared_ptr<CollectiveTask>& task);

// Makes the collectives of such a manager begin anew. All that are under way
// end with `why`, also for peers that are in them; peers that wait for this
// task to begin one go on at the new ones. Waits some seconds at most until
// those of this task have ended: next TensorFlow frees the functions that they
// are in. Errors: DeadlineExceeded if they have not.
absl::Status RenewCollectives(
    tensorflow::CollectiveExecutorMgrInterface* manager,
    const tensorflow::ConfigProto& config,
    std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
    const std::string& host, const absl::Status& why);

// The groups that wait for members at this task, their leader.
v1::WaitingGroups WaitingGroupsOf(
    const tensorflow::CollectiveExecutorMgrInterface* manager);

// What `manager` posts; null if it is not one of ours.
std::shared_ptr<StepChunks> SourceOf(
    tensorflow::CollectiveExecutorMgrInterface* manager);

// Those who have begun anew before this task; null if `manager` is not one of
// ours.
std::shared_ptr<Joins> JoinsIn(
    tensorflow::CollectiveExecutorMgrInterface* manager);

// The calls of this task until it begins anew.
std::shared_ptr<UnderWay> UnderWayIn(
    tensorflow::CollectiveExecutorMgrInterface* manager);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_RUNTIME_COLLECTIVE_MANAGER_H_
