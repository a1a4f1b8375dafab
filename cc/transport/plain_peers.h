// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Remembers the tasks that do not have the plugin, or an older one.

#ifndef TF_FUSE_CC_TRANSPORT_PLAIN_PEERS_H_
#define TF_FUSE_CC_TRANSPORT_PLAIN_PEERS_H_

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace tf_fuse {

// A task that restarts has a new incarnation, and is asked again.
class PlainPeers {
 public:
  bool Contains(const std::string& task, uint64_t incarnation) const {
    std::lock_guard<std::mutex> lock(mu_);
    return peers_.count({task, incarnation}) > 0;
  }

  // Returns true the first time, so that the caller logs once per peer.
  bool Insert(const std::string& task, uint64_t incarnation) {
    std::lock_guard<std::mutex> lock(mu_);
    // Bounded: a cluster whose tasks restart for months must not grow it.
    if (peers_.size() >= kMaxPeers) peers_.clear();
    return peers_.insert({task, incarnation}).second;
  }

  static PlainPeers* Get() {
    static PlainPeers* peers = new PlainPeers;
    return peers;
  }
  // Those that do not serve requests by parts.
  static PlainPeers* OfDynamic() {
    static PlainPeers* peers = new PlainPeers;
    return peers;
  }

 private:
  static constexpr size_t kMaxPeers = 100000;
  mutable std::mutex mu_;
  std::set<std::pair<std::string, uint64_t>> peers_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_PLAIN_PEERS_H_
