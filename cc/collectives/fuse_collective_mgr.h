// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The collectives of a task that runs the protocol "grpc+fuse": TensorFlow's
// executors and group resolution, with the remote access of tf_fuse.

#ifndef TF_FUSE_CC_COLLECTIVES_FUSE_COLLECTIVE_MGR_H_
#define TF_FUSE_CC_COLLECTIVES_FUSE_COLLECTIVE_MGR_H_

#include <memory>
#include <string>

#include "tensorflow/core/distributed_runtime/rpc_collective_executor_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace tf_fuse {

// For GrpcServerOptions::collective_mgr_func. `task` is the server's, `host`
// the name or address by which others reach it.
tensorflow::CollectiveExecutorMgrInterface* CreateFuseCollectiveMgr(
    const tensorflow::ConfigProto& config, const tensorflow::WorkerEnv* env,
    tensorflow::WorkerCacheInterface* workers, const std::string& task,
    const std::string& host);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_FUSE_COLLECTIVE_MGR_H_
