// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/frame_aliasing.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "passes/view/partition_view.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

using tensorflow::Edge;
using tensorflow::Node;

namespace {

// Kernels of these are done with their inputs when they return.
// (AssignVariableOp is not among them: the variable takes the tensor over as
// its value.)
bool ConsumesAtOnce(const Node& node) {
  const std::string& op = node.type_string();
  if (op == "AssignVariableOp" || op == "Assign") return false;
  return absl::StartsWith(op, "Resource") || absl::StartsWith(op, "Assign") ||
         absl::StartsWith(op, "Scatter") || absl::StartsWith(op, "Apply") ||
         absl::StartsWith(op, "SparseApply") || op == "_Send" ||
         op == "_HostSend" || op == "Assert" ||
         op == "TfFuse>ElementwiseUpdate" || op == "TfFuse>StagedUpdate";
}

// Kernels of these may return memory of their input, some only for certain
// attributes or shapes (AddN of one value, Sum over no dimension). Kernels that
// write their result over an input need not be here: a frame's views say that
// they do not own their memory.
bool MayShareMemory(const Node& node) {
  static const auto* const kOps =
      new std::set<std::string>{"AddN",
                                "All",
                                "Any",
                                "BatchToSpace",
                                "BatchToSpaceND",
                                "Bitcast",
                                "BroadcastTo",
                                "CheckNumerics",
                                "CheckNumericsV2",
                                "Cast",
                                "Concat",
                                "ConcatV2",
                                "Conj",
                                "Einsum",
                                "EnsureShape",
                                "Enter",
                                "Exit",
                                "ExpandDims",
                                "GuaranteeConst",
                                "Identity",
                                "IdentityN",
                                "Max",
                                "MatrixBandPart",
                                "Mean",
                                "Merge",
                                "Min",
                                "MirrorPad",
                                "NextIteration",
                                "Pack",
                                "Pad",
                                "PadV2",
                                "PlaceholderWithDefault",
                                "PreventGradient",
                                "Print",
                                "Prod",
                                "Reshape",
                                "Reverse",
                                "ReverseV2",
                                "Roll",
                                "Round",
                                "Select",
                                "SelectV2",
                                "Slice",
                                "Snapshot",
                                "SpaceToBatch",
                                "SpaceToBatchND",
                                "SparseReorder",
                                "Split",
                                "SplitV",
                                "Squeeze",
                                "StopGradient",
                                "StridedSlice",
                                "Sum",
                                "Switch",
                                "TfFuse>PlaceRows",
                                "TfFuse>SumRows",
                                "TfFuse>UniqueIds",
                                "Tile",
                                "Transpose",
                                "Unpack",
                                "_SwitchN"};
  if (kOps->count(node.type_string()) == 0) return false;
  // These hand their input on only where there is nothing to do.
  const std::string& type = node.type_string();
  int count = 0;
  if (type == "AddN" || type == "Pack") {
    return !TryGetNodeAttr(node.attrs(), "N", &count) || count < 2;
  }
  tensorflow::DataType from = tensorflow::DT_INVALID;
  tensorflow::DataType to = tensorflow::DT_INVALID;
  if (type == "Cast" && TryGetNodeAttr(node.attrs(), "SrcT", &from) &&
      TryGetNodeAttr(node.attrs(), "DstT", &to)) {
    // A quantized type may be cast to the type that holds it.
    return from == to || tensorflow::DataTypeIsQuantized(from) ||
           tensorflow::DataTypeIsQuantized(to);
  }
  return true;
}

bool HasVariantOutput(const Node& node) {
  return std::any_of(
      node.output_types().begin(), node.output_types().end(),
      [](tensorflow::DataType type) { return type == tensorflow::DT_VARIANT; });
}

// The client of a session may keep what it fetches, and gets the same memory if
// it is in the process of its master.
bool IsFetch(const Node& node) {
  bool client_terminated = false;
  return node.IsSend() &&
         TryGetNodeAttr(node.attrs(), "client_terminated",
                        &client_terminated) &&
         client_terminated;
}

// It may have state that its OpDef does not declare, or return its input.
bool HasHiddenState(const Node& node) {
  const auto& inputs = node.input_types();
  return std::any_of(inputs.begin(), inputs.end(), &tensorflow::IsRefType) ||
         CallsFunction(node);
}

// AddN begins its sum with the first input whose memory it may write over.
// Three or more floats added up in another order may differ in the last bit.
bool AddsInOrderOfOwnership(const Node& node) {
  int count = 0;
  tensorflow::DataType type = tensorflow::DT_INVALID;
  return node.type_string() == "AddN" &&
         TryGetNodeAttr(node.attrs(), "N", &count) && count > 2 &&
         TryGetNodeAttr(node.attrs(), "T", &type) &&
         !tensorflow::DataTypeIsInteger(type);
}

}  // namespace

bool NeedsOwnMemory(const Node& recv, bool in_loop) {
  std::vector<const Node*> pending = {&recv};
  std::set<const Node*> seen = {&recv};
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    for (const Edge* edge : node->out_edges()) {
      if (edge->IsControlEdge()) continue;
      const Node* dst = edge->dst();
      if (!dst->IsOp()) continue;
      // Goes round the loop, perhaps to its end, and every iteration brings a
      // frame.
      if (in_loop && dst->IsNextIteration()) return true;
      if (dst->IsRetval() || IsFetch(*dst) || HasVariantOutput(*dst)) {
        return true;
      }
      if ((dst->op_def().is_stateful() || HasHiddenState(*dst)) &&
          !ConsumesAtOnce(*dst)) {
        return true;
      }
      if (AddsInOrderOfOwnership(*dst)) return true;
      // What a Switch decides by is not handed on.
      if (dst->IsSwitch() && edge->dst_input() != 0) continue;
      if (MayShareMemory(*dst) && seen.insert(dst).second) {
        pending.push_back(dst);
      }
    }
  }
  return false;
}

bool DependsOnOwner(const Node& node) {
  std::vector<const Node*> pending = {&node};
  std::set<const Node*> seen = {&node};
  while (!pending.empty()) {
    const Node* one = pending.back();
    pending.pop_back();
    for (const Edge* edge : one->out_edges()) {
      if (edge->IsControlEdge()) continue;
      const Node* dst = edge->dst();
      if (AddsInOrderOfOwnership(*dst) ||
          absl::StartsWith(dst->type_string(), "Inplace")) {
        return true;
      }
      if (MayShareMemory(*dst) && seen.insert(dst).second) {
        pending.push_back(dst);
      }
    }
  }
  return false;
}

}  // namespace tf_fuse
