// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/sessions/receive_stamp.h"

#include <set>
#include <utility>

#include "passes/view/partitioner_names.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_fuse {

using tensorflow::Node;

std::optional<v1::ReceiveStamp> ReadStamp(const Node& node) {
  std::string serialized;
  v1::ReceiveStamp stamp;
  if (!TryGetNodeAttr(node.attrs(), kStampAttr, &serialized) ||
      !stamp.ParseFromString(serialized)) {
    return std::nullopt;
  }
  return stamp;
}

bool HasStamp(const Node& node) {
  return node.attrs().Find(kStampAttr) != nullptr;
}

ReceiveUses::ReceiveUses(const PartitionView& view)
    : view_(view), consumers_(view.size()) {
  for (NodeId id = 0; id < view.size(); ++id) {
    for (const PartitionView::Edge& edge : view.in_edges(id)) {
      consumers_[edge.node].push_back(
          {id, edge.dst_input,
           edge.src_output == tensorflow::Graph::kControlSlot});
    }
  }
}

std::vector<ReceiveUse> ReceiveUses::Find(const Receive& receive,
                                          const std::string& source) const {
  std::vector<ReceiveUse> uses;
  std::vector<NodeId> pending = {receive.node};
  std::set<NodeId> seen = {receive.node};
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    for (const Consumer& consumer : consumers_[id]) {
      const Node& node = *view_.node(consumer.node);
      // Only makes another receive, of the same reader, wait for this one.
      if (consumer.is_control && node.IsRecv()) continue;
      if (IsMadeByPartitioner(node, source)) {
        if (seen.insert(consumer.node).second) pending.push_back(consumer.node);
      } else {
        uses.push_back(
            {consumer.node, consumer.is_control ? -1 : consumer.dst_input});
      }
    }
  }
  return uses;
}

}  // namespace tf_fuse
