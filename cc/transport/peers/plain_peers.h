// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Remembers the tasks that do not have the plugin.

#ifndef TF_FUSE_CC_TRANSPORT_PEERS_PLAIN_PEERS_H_
#define TF_FUSE_CC_TRANSPORT_PEERS_PLAIN_PEERS_H_

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

// A task that restarts has a new incarnation, and is asked again.
class PlainPeers {
 public:
  bool Contains(const std::string& task, uint64_t incarnation) const {
    std::lock_guard<std::mutex> lock(mu_);
    return peers_.count({task, incarnation}) > 0;
  }

  // Logs each task the first time.
  void Insert(const std::string& task, uint64_t incarnation) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      // Bounded: a cluster whose tasks restart for months must not grow it.
      if (peers_.size() >= kMaxPeers) peers_.clear();
      if (!peers_.insert({task, incarnation}).second) return;
    }
    LOG(WARNING) << "tf_fuse: " << task
                 << " does not serve fused receives (it runs the protocol "
                    "'grpc', not 'grpc+fuse'); its tensors are received one by "
                    "one from now on.";
  }

  static PlainPeers* Get() {
    static PlainPeers* peers = new PlainPeers;
    return peers;
  }

 private:
  static constexpr size_t kMaxPeers = 100000;
  mutable std::mutex mu_;
  std::set<std::pair<std::string, uint64_t>> peers_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_PEERS_PLAIN_PEERS_H_
