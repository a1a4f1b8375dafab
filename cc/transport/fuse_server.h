// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The server of the protocol "grpc+fuse": TensorFlow's gRPC server with our
// rendezvous and worker.

#ifndef TF_FUSE_CC_TRANSPORT_FUSE_SERVER_H_
#define TF_FUSE_CC_TRANSPORT_FUSE_SERVER_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "passes/hosts.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "transport/features.h"

namespace tf_fuse {

enum class PeerState {
  kFused,        // Serves and runs fused receives.
  kPlain,        // Answered, but does not have the plugin.
  kUnreachable,  // Did not answer in time, or is not part of the cluster.
};

struct Peer {
  PeerState state = PeerState::kUnreachable;
  // What it can do besides, if it has the plugin.
  Features features;
};

// Whether this process runs a server of ours. If it does not, its rendezvous is
// TensorFlow's, and no graph may hold a _FuseRecv.
bool HasFuseServer();

// Asks each task ("/job:ps/replica:0/task:0") whether it has the plugin, all at
// once, and waits for the answers. Never longer than a few seconds: see
// kProbeTimeoutMs in the source.
std::map<std::string, Peer> ProbePeers(const std::set<std::string>& tasks);

// By how much one more call delays others: the work of a call between this task
// and one of its peers, measured once per process with empty fused receives.
// `otherwise` if there is no peer that answers.
double MeasuredRpcMicros(double otherwise);

// The hosts of the connected cluster's tasks, as its addresses say. Empty if
// this process runs no server of ours, or knows of no cluster.
Hosts ClusterHosts();

// The tasks ("/job:ps/replica:0/task:0") that servers of ours in this process
// are.
std::set<std::string> LocalTasks();

// The name or address by which other hosts reach this process; empty if its
// cluster does not say, or there is no server of ours.
std::string OwnHost();

// Workers of the connected cluster, and a device to receive answers with; null
// if this process runs no server of ours, or knows of no cluster.
std::shared_ptr<tensorflow::WorkerCacheInterface> ClusterWorkers(
    tensorflow::Device** device);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_FUSE_SERVER_H_
