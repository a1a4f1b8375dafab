// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Defines the stamp: the attribute by which the master of a session sends the
// workers its decision about a receive. Finds the nodes that carry it.
//
// A _Recv is made by the partitioner, after the master's last look at the
// graph. The nodes that use what it receives are there before and after. So the
// decision is written on each of them, for the input that it is about:
//
//   master                      worker
//   a (ps) ──► x (worker)       _Recv ──► x
//              input 0: group 1           input 0: group 1

#ifndef TF_FUSE_CC_PASSES_SESSIONS_RECEIVE_STAMP_H_
#define TF_FUSE_CC_PASSES_SESSIONS_RECEIVE_STAMP_H_

#include <optional>
#include <string>
#include <vector>

#include "passes/view/partition_view.h"
#include "tensorflow/core/graph/graph.h"
#include "tf_fuse/v1/receive_stamp.pb.h"

namespace tf_fuse {

// The attribute: a serialized v1::ReceiveStamp. TensorFlow hands attributes
// whose names begin with "_" on to the workers.
inline constexpr char kStampAttr[] = "_tf_fuse_stamp";
inline constexpr uint32_t kStampVersion = 1;

// The stamp of a node; none if it has none, or one that cannot be read.
std::optional<v1::ReceiveStamp> ReadStamp(const tensorflow::Node& node);
bool HasStamp(const tensorflow::Node& node);

// Where a received value, or a control edge, ends up.
struct ReceiveUse {
  NodeId node = kNoNode;
  int input = 0;  // -1 for a control input.
};

// Finds the uses of receives by nodes that the partitioner did not make.
class ReceiveUses {
 public:
  explicit ReceiveUses(const PartitionView& view);

  // Looks through what the partitioner puts between a receive and its use: the
  // Identity of a control edge, a Cast, a Send and Recv between two devices of
  // the task. `source` is SourceOfTensorName() of the receive.
  std::vector<ReceiveUse> Find(const Receive& receive,
                               const std::string& source) const;

 private:
  struct Consumer {
    NodeId node;
    int dst_input;
    bool is_control;
  };
  const PartitionView& view_;
  std::vector<std::vector<Consumer>> consumers_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_SESSIONS_RECEIVE_STAMP_H_
