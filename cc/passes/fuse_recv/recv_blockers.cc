// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv/recv_blockers.h"

#include <algorithm>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "transport/message/receive_keys.h"
#include "transport/message/tensor_frame.h"

namespace tf_fuse {

namespace {

// Whether `id` may run and be dead. The Merge of a loop runs in an iteration
// only if what comes round is live: nothing dead begins an iteration.
bool MayRunDead(const PartitionView& view, const Liveness& liveness,
                NodeId id) {
  if (!liveness.MayBeDead(id)) return false;
  const auto& edges = view.in_edges(id);
  const bool is_of_loop =
      view.node(id)->IsMerge() &&
      std::any_of(edges.begin(), edges.end(),
                  [](const auto& edge) { return edge.is_back_edge; });
  return !is_of_loop ||
         std::any_of(edges.begin(), edges.end(), [&](const auto& edge) {
           return !edge.is_back_edge && liveness.MayBeDead(edge.node);
         });
}

// A _Recv runs although an input of it is dead, and then gives a dead value;
// another operation does not run, and what was sent is not taken.
bool HasInputThatMayBeDead(const PartitionView& view, const Liveness& liveness,
                           const Receive& receive) {
  const auto& edges = view.in_edges(receive.node);
  return std::any_of(edges.begin(), edges.end(), [&](const auto& edge) {
    return edge.node != receive.send && MayRunDead(view, liveness, edge.node);
  });
}

bool MayFuseDevice(const std::string& device, const AnalysisOptions& options) {
  const std::string type = DeviceTypeOf(device);
  return type == "CPU" || (options.fuse_gpu && type == "GPU");
}

}  // namespace

std::string FindBlocker(const PartitionView& view, const Liveness& liveness,
                        const Receive& receive,
                        const AnalysisOptions& options) {
  // A fed or fetched value: the client waits for it under its own key.
  if (receive.client_terminated) return skip::kClientTerminated;
  // The device context of other devices has to copy the value.
  if (!MayFuseDevice(receive.recv_device, options) ||
      !MayFuseDevice(receive.send_device, options)) {
    return skip::kNotCpu;
  }
  // Its key depends on the call frame of the function.
  bool host_memory = false;
  if (TryGetNodeAttr(view.node(receive.node)->attrs(), "_hostmem_sendrecv",
                     &host_memory) &&
      host_memory) {
    return skip::kHostMemory;
  }
  if (!CanBePacked(receive.dtype)) return skip::kType;
  const bool to_gpu = DeviceTypeOf(receive.recv_device) == "GPU";
  const bool of_gpu = to_gpu || DeviceTypeOf(receive.send_device) == "GPU";
  // Only plain bytes are copied between memories; and a Switch on a GPU has
  // some types in the memory of the host, and others not.
  if ((of_gpu && !tensorflow::DataTypeCanUseMemcpy(receive.dtype)) ||
      (to_gpu && liveness.MayBeDead(receive.node))) {
    return skip::kNotCpu;
  }
  if (view.frame(receive.node) == kUnknownFrame) return skip::kUnreachableNode;
  const bool in_loop = !view.frame(receive.node).empty();
  if (in_loop && HasInputThatMayBeDead(view, liveness, receive)) {
    return skip::kLoopFrame;
  }
  if (liveness.MayBeDead(receive.node) &&
      (!options.fuse_may_be_dead ||
       HasInputThatMayBeDead(view, liveness, receive))) {
    return skip::kMayBeDead;
  }
  if (IsKeyTooLong(receive, options)) {
    return skip::kKeyTooLong;
  }
  return "";
}

bool IsKeyTooLong(const Receive& receive, const AnalysisOptions& options) {
  return RendezvousKeyBytes(receive.send_device.size(),
                            receive.recv_device.size(),
                            receive.tensor_name.size()) > options.max_key_bytes;
}

}  // namespace tf_fuse
