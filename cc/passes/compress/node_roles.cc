// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/compress/node_roles.h"

#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "passes/view/placed_nodes.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Node;

namespace {

using Types = std::set<std::string>;

}  // namespace

bool IsWorker(const std::string& device) {
  return absl::StartsWith(device, "/job:worker/");
}

bool HandsOn(const Node& node) {
  static const auto* const kTypes =
      new Types{"Identity", "Reshape", "Cast",  "ExpandDims",  "Squeeze",
                "Snapshot", "Switch",  "Merge", "StopGradient"};
  return kTypes->count(node.type_string()) > 0;
}

bool Moves(const Node& node) {
  static const auto* const kTypes = new Types{"BroadcastTo",
                                              "CheckNumerics",
                                              "Concat",
                                              "ConcatV2",
                                              "DynamicPartition",
                                              "DynamicStitch",
                                              "EnsureShape",
                                              "Enter",
                                              "Exit",
                                              "GatherNd",
                                              "GatherV2",
                                              "IdentityN",
                                              "MirrorPad",
                                              "NextIteration",
                                              "Pack",
                                              "Pad",
                                              "PadV2",
                                              "ParallelConcat",
                                              "ParallelDynamicStitch",
                                              "PreventGradient",
                                              "ReverseSequence",
                                              "ReverseV2",
                                              "Roll",
                                              "Select",
                                              "SelectV2",
                                              "Slice",
                                              "Split",
                                              "SplitV",
                                              "StridedSlice",
                                              "TensorListConcatV2",
                                              "TensorListFromTensor",
                                              "TensorListGetItem",
                                              "TensorListPushBack",
                                              "TensorListSetItem",
                                              "TensorListStack",
                                              "TensorScatterUpdate",
                                              "Tile",
                                              "Transpose",
                                              "Unpack"};
  return HandsOn(node) || kTypes->count(node.type_string()) > 0;
}

bool CarriesValues(const Edge& edge) {
  if (edge.IsControlEdge()) return false;
  const tensorflow::DataType type = edge.src()->output_type(edge.src_output());
  return tensorflow::DataTypeIsFloating(type) || type == tensorflow::DT_VARIANT;
}

bool PicksRows(const Node& node) {
  static const auto* const kTypes =
      new Types{"GatherV2",          "StridedSlice",       "SegmentSum",
                "SegmentMean",       "UnsortedSegmentSum", "SparseSegmentSum",
                "SparseSegmentMean", "SparseSegmentSqrtN"};
  return kTypes->count(node.type_string()) > 0;
}

bool EntersOrLeavesLoop(const Node& node) {
  return node.IsEnter() || node.IsExit() || node.IsNextIteration();
}

Handle HandleOf(const Node& node, int input) {
  const Edge* edge = InputOf(node, input);
  // (A graph's own circle, a loop, has no handles that change.)
  for (int steps = 0; edge != nullptr && steps < 1000; ++steps) {
    const Node* source = edge->src();
    if (source->IsArg() || source->type_string() == "TfFuse>UnpackHandles") {
      return {source, edge->src_output()};
    }
    if (!HandsOn(*source) && !source->IsEnter()) break;
    edge = InputOf(*source, 0);
  }
  return {nullptr, 0};
}

std::string MarkOfInput(const Node& node, int input) {
  const auto [source, output] = HandleOf(node, input);
  if (source == nullptr) return "";
  if (source->IsArg()) {
    std::string mark;
    (void)tensorflow::TryGetNodeAttr(source->attrs(), kCompressAttr, &mark);
    return mark;
  }
  std::vector<std::string> marks;
  (void)tensorflow::TryGetNodeAttr(source->attrs(), kCompressAttr, &marks);
  const auto at = static_cast<size_t>(output);
  return at < marks.size() ? marks[at] : "";
}

bool IsCompressed(const std::string& mark) {
  return absl::StartsWith(mark, kCompressedPrefix);
}

bool IsRows(const Node* node, const std::string& device) {
  for (int steps = 0; node != nullptr && steps < 1000; ++steps) {
    if (DeviceOf(*node) != device) return false;
    const std::string& type = node->type_string();
    if (type == "ResourceGather" || type == "ResourceGatherNd") {
      return node->output_type(0) == tensorflow::DT_FLOAT &&
             IsCompressed(MarkOfInput(*node, 0));
    }
    if (!HandsOn(*node) && !PicksRows(*node)) return false;
    const Edge* edge = InputOf(*node, 0);
    if (edge == nullptr ||
        edge->src()->output_type(edge->src_output()) != tensorflow::DT_FLOAT) {
      return false;
    }
    node = edge->src();
  }
  return false;
}

bool GetsNumbersOfStep(const Node& node) {
  for (const Edge* edge : node.in_edges()) {
    if (edge->IsControlEdge()) continue;
    const tensorflow::DataType type = node.input_type(edge->dst_input());
    if (type != tensorflow::DT_INT32 && type != tensorflow::DT_INT64) continue;
    const Node* source = edge->src();
    while (HandsOn(*source) && InputOf(*source, 0) != nullptr) {
      source = InputOf(*source, 0)->src();
      if (source->IsMerge()) break;
    }
    if (!source->IsConstant() &&
        source->type_string() != "TfFuse>UpdateCount") {
      return true;
    }
  }
  return false;
}

bool IsUpdate(const std::string& type) {
  static const auto* const kTypes =
      new Types{"AssignAddVariableOp",      "AssignSubVariableOp",
                "ResourceScatterAdd",       "ResourceScatterSub",
                "ResourceScatterNdAdd",     "ResourceScatterNdSub",
                "TfFuse>ElementwiseUpdate", "TfFuse>StagedUpdate"};
  return kTypes->count(type) > 0 || absl::StartsWith(type, "ResourceApply") ||
         absl::StartsWith(type, "ResourceSparseApply");
}

bool IsAssignment(const std::string& type) {
  return type == "AssignVariableOp" || type == "ResourceScatterUpdate" ||
         type == "ResourceScatterNdUpdate" ||
         type == "ResourceStridedSliceAssign";
}

}  // namespace tf_fuse
