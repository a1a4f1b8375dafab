// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Asks other tasks whether they have the plugin.

#ifndef TF_FUSE_CC_TRANSPORT_PEERS_PROBE_H_
#define TF_FUSE_CC_TRANSPORT_PEERS_PROBE_H_

#include <map>
#include <set>
#include <string>

namespace tf_fuse {

enum class PeerState {
  kFused,        // Serves and runs fused receives.
  kPlain,        // Answered, but does not have the plugin.
  kUnreachable,  // Did not answer in time, or is not part of the cluster.
};

// Asks each task ("/job:ps/replica:0/task:0") whether it has the plugin, all at
// once, and waits for the answers. Never longer than a few seconds: see
// kProbeTimeoutMs in the source.
std::map<std::string, PeerState> ProbePeers(const std::set<std::string>& tasks);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_PEERS_PROBE_H_
