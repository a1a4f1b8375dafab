// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Views all partitions of one graph as one graph: Send and Recv of a pair are
// joined. Read-only, and in an order that depends on names alone, so that every
// process finds the same.

#ifndef TF_FUSE_CC_PASSES_VIEW_PARTITION_VIEW_H_
#define TF_FUSE_CC_PASSES_VIEW_PARTITION_VIEW_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

using PartitionGraphs =
    std::unordered_map<std::string, std::unique_ptr<tensorflow::Graph>>;

// Index of a node of the view.
using NodeId = int;
inline constexpr NodeId kNoNode = -1;

// The frame of a node that the graph's source does not reach: not known.
inline constexpr char kUnknownFrame[] = "(unreachable)";

// One _Recv or _HostRecv, in any partition.
struct Receive {
  NodeId node = kNoNode;
  NodeId send = kNoNode;  // kNoNode: the sender is in no visible partition.
  std::string send_device;
  std::string recv_device;
  std::string tensor_name;
  int64_t send_device_incarnation = 0;
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  bool client_terminated = false;
  bool same_task = false;  // Between devices of one task: no RPC.
  // Its value is wanted in the memory of the host, not in that of the device.
  // False on CPUs, where there is one memory.
  bool on_host = false;
};

class PartitionView {
 public:
  struct Edge {
    NodeId node = kNoNode;
    int src_output = 0;  // Graph::kControlSlot for a control edge.
    int dst_input = 0;
    // From a NextIteration: closes a loop, and is left out of all orders.
    bool is_back_edge = false;
  };

  // Errors: InvalidArgument for nodes whose attributes cannot be read, and for
  // graphs whose control flow is malformed.
  static absl::StatusOr<PartitionView> Build(const PartitionGraphs& partitions);

  int size() const { return static_cast<int>(nodes_.size()); }
  tensorflow::Node* node(NodeId id) const { return nodes_[id].node; }
  // Name of the partition (a device) that holds the node.
  const std::string& partition(NodeId id) const {
    return partition_names_[nodes_[id].partition];
  }
  // The loop frame that the node runs in; empty for the outermost.
  const std::string& frame(NodeId id) const { return nodes_[id].frame; }
  // Includes the edge from a Send to its Recv (as data), and an edge to each
  // Exit from each Enter and NextIteration of the same frame in any partition
  // (as control): what enters a loop or goes round it may leave it by any exit.
  const std::vector<Edge>& in_edges(NodeId id) const {
    return nodes_[id].in_edges;
  }

  // All receives, sorted by partition and node name.
  const std::vector<Receive>& receives() const { return receives_; }

  // Every node after its inputs, back edges left out. Empty if that cannot be.
  const std::vector<NodeId>& topological_order() const { return order_; }

 private:
  struct ViewNode {
    tensorflow::Node* node = nullptr;
    int partition = 0;
    std::string frame;
    std::vector<Edge> in_edges;
  };

  absl::Status AddPartition(int index, const tensorflow::Graph& graph);
  absl::Status JoinSendsAndReceives();
  void JoinFrames();
  void ComputeOrder();

  std::vector<std::string> partition_names_;
  std::vector<ViewNode> nodes_;
  std::vector<Receive> receives_;
  std::vector<NodeId> order_;
};

// "/job:ps/replica:0/task:1" of "/job:ps/replica:0/task:1/device:CPU:0", or the
// whole name if it is not a full device name.
std::string TaskOfDevice(const std::string& device);

// Its task, without characters that node names cannot hold: "ps_1".
std::string ShortTask(const std::string& device);

// Whether the node runs functions: its attributes name one.
bool CallsFunction(const tensorflow::Node& node);

// "CPU" of "/job:ps/replica:0/task:1/device:CPU:0".
std::string DeviceTypeOf(const std::string& device);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_VIEW_PARTITION_VIEW_H_
