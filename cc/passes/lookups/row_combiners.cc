// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/lookups/row_combiners.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "passes/view/placed_nodes.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::Edge;
using tensorflow::Node;

namespace {

using Types = std::set<std::string>;

// The whole numbers of an input, if it is a constant.
bool ConstantOf(const Node& node, int input, std::set<int64_t>* numbers) {
  const Edge* edge = InputOf(node, input);
  tensorflow::Tensor value;
  if (edge == nullptr || !edge->src()->IsConstant() ||
      !tensorflow::GetNodeAttr(edge->src()->attrs(), "value", &value).ok()) {
    return false;
  }
  for (int64_t i = 0; i < value.NumElements(); ++i) {
    if (value.dtype() == tensorflow::DT_INT32) {
      numbers->insert(value.flat<int32_t>()(i));
    } else if (value.dtype() == tensorflow::DT_INT64) {
      numbers->insert(value.flat<int64_t>()(i));
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

bool IsByElement(const Node& node) {
  static const auto* const kTypes = new Types{
      "Cast",       "DivNoNan",  "ExpandDims",  "Fill",     "Identity",
      "LogicalAnd", "Mul",       "Neg",         "OnesLike", "PreventGradient",
      "RealDiv",    "Reshape",   "Select",      "SelectV2", "Snapshot",
      "Squeeze",    "ZerosLike", "StopGradient"};
  return kTypes->count(node.type_string()) > 0;
}

bool PicksByNumber(const Node& node) {
  int batch_dims = 0;
  std::set<int64_t> axis;
  return node.type_string() == "GatherV2" &&
         (!TryGetNodeAttr(node.attrs(), "batch_dims", &batch_dims) ||
          batch_dims == 0) &&
         ConstantOf(node, 2, &axis) && axis == std::set<int64_t>{0};
}

bool CombinesRows(const Node& node, const std::vector<int64_t>& sizes) {
  static const auto* const kTypes =
      new Types{"SegmentMean",        "SegmentSum",
                "SparseSegmentMean",  "SparseSegmentMeanWithNumSegments",
                "SparseSegmentSqrtN", "SparseSegmentSqrtNWithNumSegments",
                "SparseSegmentSum",   "SparseSegmentSumWithNumSegments",
                "UnsortedSegmentSum"};
  if (kTypes->count(node.type_string()) > 0) return true;
  if (node.type_string() != "Sum" && node.type_string() != "Mean") return false;
  // (The order of a sum of all elements depends on the number of threads.)
  std::set<int64_t> axes;
  const int64_t rank = static_cast<int64_t>(sizes.size());
  return rank > 1 && sizes.back() > 1 && ConstantOf(node, 1, &axes) &&
         axes.count(-1) == 0 && axes.count(rank - 1) == 0;
}

bool Measures(const Node& node) {
  static const auto* const kTypes = new Types{"Rank", "Shape", "Size"};
  return kTypes->count(node.type_string()) > 0;
}

bool IsGradientOfSegments(const Node& node) {
  const std::string& type = node.type_string();
  return absl::StartsWith(type, "SparseSegment") &&
         (absl::EndsWith(type, "Grad") || absl::EndsWith(type, "GradV2"));
}

bool Repeats(const Node& node) {
  return node.type_string() == "BroadcastTo" || node.type_string() == "Tile";
}

bool UndoesBroadcast(const Node& node) {
  if (node.type_string() != "Sum") return false;
  const Edge* axes = InputOf(node, 1);
  return axes != nullptr && axes->src()->IsOp() &&
         axes->src()->type_string() == "BroadcastGradientArgs";
}

bool ComputesNumbers(const Node& node) {
  static const auto* const kTypes = new Types{"BroadcastGradientArgs",
                                              "Cast",
                                              "ConcatV2",
                                              "DynamicStitch",
                                              "ExpandDims",
                                              "Fill",
                                              "FloorDiv",
                                              "FloorMod",
                                              "GreaterEqual",
                                              "Identity",
                                              "Maximum",
                                              "Minimum",
                                              "Mul",
                                              "OnesLike",
                                              "Pack",
                                              "Prod",
                                              "Range",
                                              "Reshape",
                                              "Size",
                                              "Rank",
                                              "Shape",
                                              "StridedSlice",
                                              "Sub",
                                              "ZerosLike"};
  const auto& outputs = node.output_types();
  return kTypes->count(node.type_string()) > 0 &&
         std::all_of(outputs.begin(), outputs.end(), [](DataType type) {
           return type == tensorflow::DT_INT32 ||
                  type == tensorflow::DT_INT64 || type == tensorflow::DT_BOOL;
         });
}

int SegmentIdsOf(const Node& node) {
  const std::string& type = node.type_string();
  if (absl::StartsWith(type, "SparseSegment")) return 2;
  if (type == "SegmentSum" || type == "SegmentMean" ||
      type == "UnsortedSegmentSum" || type == "GatherV2") {
    return 1;
  }
  return -1;
}

}  // namespace tf_fuse
