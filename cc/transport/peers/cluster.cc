// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/peers/cluster.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/hosts.h"

namespace tf_fuse {

namespace {

struct TaskServers {
  absl::Mutex mu;
  std::vector<TaskServer*> all ABSL_GUARDED_BY(mu);  // The newest one last.

  static TaskServers* Get() {
    static TaskServers* servers = new TaskServers;
    return servers;
  }
};

}  // namespace

void AddTaskServer(TaskServer* server) {
  TaskServers* const servers = TaskServers::Get();
  absl::MutexLock lock(&servers->mu);
  servers->all.push_back(server);
}

void RemoveTaskServer(TaskServer* server) {
  TaskServers* const servers = TaskServers::Get();
  absl::MutexLock lock(&servers->mu);
  auto& all = servers->all;
  all.erase(std::remove(all.begin(), all.end(), server), all.end());
}

bool HasFuseServer() {
  TaskServers* const servers = TaskServers::Get();
  absl::MutexLock lock(&servers->mu);
  return !servers->all.empty();
}

std::set<std::string> LocalTasks() {
  TaskServers* const servers = TaskServers::Get();
  absl::MutexLock lock(&servers->mu);
  std::set<std::string> tasks;
  for (const TaskServer* server : servers->all) tasks.insert(server->task());
  return tasks;
}

std::string OwnHost() {
  TaskServers* const servers = TaskServers::Get();
  absl::MutexLock lock(&servers->mu);
  return servers->all.empty() ? "" : servers->all.back()->OwnHost();
}

std::map<std::string, std::string> AddressesOfTasks() {
  TaskServers* const servers = TaskServers::Get();
  absl::MutexLock lock(&servers->mu);
  if (servers->all.empty()) return {};
  return servers->all.back()->AddressesOfTasks();
}

std::map<std::string, std::string> HostsOfTasks() {
  std::map<std::string, std::string> hosts;
  for (const auto& [task, address] : AddressesOfTasks()) {
    hosts[task] = HostOfAddress(address);
  }
  return hosts;
}

std::shared_ptr<tensorflow::WorkerCacheInterface> ClusterWorkers(
    tensorflow::Device** device) {
  TaskServers* const servers = TaskServers::Get();
  absl::MutexLock lock(&servers->mu);
  if (servers->all.empty()) return nullptr;
  *device = servers->all.back()->HostDevice();
  return servers->all.back()->Workers();
}

}  // namespace tf_fuse
