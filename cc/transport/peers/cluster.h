// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What this process knows of the cluster: its own tasks, and where the others
// are. Servers of the protocol "grpc+fuse" make themselves known here.

#ifndef TF_FUSE_CC_TRANSPORT_PEERS_CLUSTER_H_
#define TF_FUSE_CC_TRANSPORT_PEERS_CLUSTER_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"

namespace tf_fuse {

// A server of ours. Its methods may be called on any thread.
class TaskServer {
 public:
  virtual ~TaskServer() = default;
  // "/job:ps/replica:0/task:0".
  virtual std::string task() const = 0;
  // By which other tasks reach this one; empty if the cluster does not say.
  virtual std::string OwnHost() const = 0;
  virtual std::map<std::string, std::string> AddressesOfTasks() const = 0;
  // Workers of the cluster as last seen, to ask peers with; null if it knows of
  // no cluster.
  virtual std::shared_ptr<tensorflow::WorkerCacheInterface> Workers() = 0;
  // A device to receive answers with.
  virtual tensorflow::Device* HostDevice() = 0;
};

// From now on `server` is asked, until it is removed. Tests may run several;
// the newest one answers what only one can.
void AddTaskServer(TaskServer* server);
void RemoveTaskServer(TaskServer* server);

// Whether this process runs a server of ours. If it does not, its rendezvous is
// TensorFlow's, and no graph may hold a _FuseRecv.
bool HasFuseServer();

// The hosts of the connected cluster's tasks, as its addresses say. Empty if
// this process runs no server of ours, or knows of no cluster.
std::map<std::string, std::string> HostsOfTasks();
// Their addresses ("host:port"); likewise.
std::map<std::string, std::string> AddressesOfTasks();

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

#endif  // TF_FUSE_CC_TRANSPORT_PEERS_CLUSTER_H_
