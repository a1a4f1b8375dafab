// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_send_analysis.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "transport/fused_keys.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Node;

namespace {

bool IsSet(const Node& node, const char* attr) {
  bool value = false;
  return TryGetNodeAttr(node.attrs(), attr, &value) && value;
}

// A _Send as the partitioner makes them: one tensor that is no reference, and
// nothing that waits for the sending.
bool IsPlainSend(const Node& node, bool may_be_awaited) {
  // _HostSend, of strings, is the same where all memory is the host's.
  if ((node.type_string() != "_Send" && node.type_string() != "_HostSend") ||
      IsSet(node, "client_terminated") || IsSet(node, "_hostmem_sendrecv")) {
    return false;
  }
  const Edge* input = nullptr;
  if (!node.input_edge(0, &input).ok() ||
      IsRefType(input->src()->output_type(input->src_output()))) {
    return false;
  }
  return may_be_awaited ||
         std::none_of(node.out_edges().begin(), node.out_edges().end(),
                      [](const Edge* edge) { return edge->dst()->IsOp(); });
}

bool IsOnCpu(const std::string& device) {
  return DeviceTypeOf(device) == "CPU";
}

bool IsFrameKeyTooLong(const FuseGroup& group, uint64_t max_key_bytes) {
  return RendezvousKeyBytes(group.send_device.size(), group.recv_device.size(),
                            sizeof(kFramePrefix) - 1 +
                                group.receives[0]->tensor_name.size() +
                                kMaxFrameSuffixBytes) > max_key_bytes;
}

// The reason that lies in the graph, or "". `taken` are the senders of the
// groups before: a graph in which two receives share one is malformed.
std::string FindUnpackedReason(const PartitionView& view,
                               const FuseGroup& group,
                               const AnalysisOptions& options,
                               const std::set<NodeId>& taken) {
  if (!IsOnCpu(group.send_device) || !IsOnCpu(group.recv_device)) {
    return unpacked::kNotCpu;
  }
  if (!group.frame.empty()) return unpacked::kLoopFrame;
  for (const bool may_be_dead : group.may_be_dead) {
    if (may_be_dead) return unpacked::kMayBeDead;
  }
  const NodeId first = group.receives[0]->send;
  std::set<NodeId> sends;
  for (const Receive* receive : group.receives) {
    if (receive->send == kNoNode) return unpacked::kSenderNotVisible;
    if (!view.frame(receive->send).empty() ||
        !view.frame(receive->node).empty()) {
      return unpacked::kLoopFrame;
    }
    if (!IsPlainSend(*view.node(receive->send), options.pack_awaited_sends) ||
        view.partition(receive->send) != view.partition(first) ||
        taken.count(receive->send) > 0 || !sends.insert(receive->send).second) {
      return unpacked::kUnusualSend;
    }
  }
  if (IsFrameKeyTooLong(group, options.max_key_bytes)) {
    return unpacked::kKeyTooLong;
  }
  return "";
}

}  // namespace

void MarkGroupsToPack(const PartitionView& view, const AnalysisOptions& options,
                      FusePlan* plan) {
  std::set<NodeId> taken;
  for (FuseGroup& group : plan->groups) {
    if (group.dynamic) {
      group.unpacked_reason = unpacked::kDynamic;
    } else if (plan->in_session) {
      group.unpacked_reason = unpacked::kSession;
    } else {
      group.unpacked_reason = FindUnpackedReason(view, group, options, taken);
    }
    if (group.unpacked_reason.empty() && options.pack_blocker) {
      group.unpacked_reason = options.pack_blocker(
          TaskOfDevice(group.send_device), TaskOfDevice(group.recv_device));
    }
    group.packed_by_sender = group.unpacked_reason.empty();
    if (group.packed_by_sender && options.readable_frames) {
      group.readable = options.readable_frames(TaskOfDevice(group.recv_device));
    }
    for (const Receive* receive : group.receives) taken.insert(receive->send);
  }
}

}  // namespace tf_fuse
