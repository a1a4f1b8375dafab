// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Defines the plan of the fuse_recv pass: which receives become one operation,
// and why the others do not. The analysis makes it, the rewrite carries it out.

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_PLAN_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_PLAN_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "passes/estimate/timeline.h"
#include "passes/view/partition_view.h"

namespace tf_fuse {

// Why a receive is left alone. The texts are part of the metrics and of
// `explain`; docs/fuse_recv.md describes each.
namespace skip {
inline constexpr char kMayBeDead[] = "may_be_dead";
inline constexpr char kLoopFrame[] = "loop_frame";
inline constexpr char kClientTerminated[] = "client_terminated";
inline constexpr char kNotCpu[] = "not_cpu";
inline constexpr char kHostMemory[] = "host_memory";
inline constexpr char kType[] = "type_not_serializable";
inline constexpr char kKeyTooLong[] = "key_too_long";
inline constexpr char kAlone[] = "alone";
inline constexpr char kLarge[] = "large";
inline constexpr char kSplitOff[] = "split_off";
inline constexpr char kWouldCycle[] = "would_cycle";
inline constexpr char kSenderNotVisible[] = "sender_not_visible";
inline constexpr char kCyclicGraph[] = "cyclic_graph";
inline constexpr char kUnreachableNode[] = "unreachable_node";
inline constexpr char kPeerPlain[] = "peer_without_plugin";
inline constexpr char kPeerUnreachable[] = "peer_unreachable";
inline constexpr char kNoFuseServer[] = "no_fuse_server";
inline constexpr char kRefRace[] = "ref_race";
// Of sessions.
inline constexpr char kNotStamped[] = "not_stamped";
inline constexpr char kStampVersion[] = "stamp_version";
}  // namespace skip

struct SkippedReceive {
  const Receive* receive = nullptr;
  std::string reason;
};

// Receives that become one _FuseRecv, in the order of its outputs; or, if
// `dynamic`, one _FuseRecv each.
struct FuseGroup {
  std::string send_device;
  std::string recv_device;
  int depth = 0;
  std::string frame;  // Of the loop that they lie in; empty for the outermost.
  bool on_host = false;  // As Receive::on_host.
  std::vector<const Receive*> receives;
  std::vector<bool> may_be_dead;  // Of each receive.
  // How many tensors each joint send has, from the first receive on; the others
  // are sent one by one.
  std::vector<int> joint_sends;
  // Each receive becomes an operation of its own; those that wait at the same
  // time share requests. They have no common depth.
  bool dynamic = false;
};

// Small operations of one partition that become one, each after its inputs.
struct OperationGroup {
  std::vector<NodeId> nodes;
};

struct FusePlan {
  std::vector<FuseGroup> groups;
  std::vector<OperationGroup> operation_groups;
  std::vector<SkippedReceive> skipped;
  int local_receives = 0;
  // In a session: those that the master has found to be live.
  std::set<NodeId> live_receives;
  // Of all receives, by node. Only kCost estimates them.
  std::map<NodeId, ReceiveEstimate> estimates;
  // TensorFlow keeps the kernels of a session by the names of their nodes, so
  // what is made must have a name that no other graph of the session has.
  bool in_session = false;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_PLAN_H_
