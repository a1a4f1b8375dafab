// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/blocking_ops.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "passes/view/partition_view.h"

namespace tf_fuse {

namespace {

// Parts of names. Most are stateful too; Batch and Unbatch are not, though they
// wait for other callers.
constexpr const char* kBlocking[] = {
    "Accumulator", "Barrier", "Batch",   "Collective", "Dataset",    "Iterator",
    "Mutex",       "Peek",    "PyFunc",  "Queue",      "ReaderRead", "Recv",
    "Rendezvous",  "Stage",   "Unbatch", "Unstage"};

// With such a part in their names, but plain arithmetic.
constexpr const char* kArithmetic[] = {"BatchMatMul", "BatchNorm",
                                       "BatchToSpace", "SpaceToBatch"};

// Beginnings of the names of stateful operations that wait for nothing.
constexpr const char* kEndByThemselves[] = {
    "Abort",
    "AllCandidateSampler",
    "AnonymousHashTable",
    "AnonymousMutable",
    "Apply",
    "Assert",
    "Assign",
    "CheckNumerics",
    "Debug",
    "DeleteSessionTensor",
    "Destroy",
    "DisableCopyOnRead",
    "FixedUnigramCandidateSampler",
    "GetSession",
    "HashTable",
    "InitializeTable",
    "LearnedUnigramCandidateSampler",
    "LogUniformCandidateSampler",
    "LookupTable",
    "MergeV2Checkpoints",
    "Multinomial",
    "MutableDenseHashTable",
    "MutableHashTable",
    "NonDeterministicInts",
    "ParameterizedTruncatedNormal",
    "Print",
    "Random",
    "ReadVariableOp",
    "Resource",
    "Restore",
    "Rng",
    "Save",
    "Scatter",
    "Stack",
    "StatefulRandom",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "StatefulUniform",
    "TemporaryVariable",
    "TensorArray",
    "TfFuse>",
    "ThreadUnsafeUnigramCandidateSampler",
    "Timestamp",
    "TruncatedNormal",
    "UniformCandidateSampler",
    "VarHandleOp",
    "VarIsInitializedOp",
    "Variable",
    "WriteSummary",
    "_Arg",
    "_ReadVariablesOp",
    "_Retval",
    "_VarHandlesOp"};

}  // namespace

bool MayBlock(const tensorflow::Node& node) {
  // Which wait for an edge of the graph.
  if (node.IsSend() || node.IsRecv()) return false;
  // What is called may hold any operation.
  if (CallsFunction(node)) return true;
  const std::string& type = node.type_string();
  const auto contains = [&type](const char* part) {
    return absl::StrContains(type, part);
  };
  const auto starts = [&type](const char* part) {
    return absl::StartsWith(type, part);
  };
  if (std::any_of(std::begin(kBlocking), std::end(kBlocking), contains) &&
      std::none_of(std::begin(kArithmetic), std::end(kArithmetic), contains)) {
    return true;
  }
  return node.op_def().is_stateful() &&
         std::none_of(std::begin(kEndByThemselves), std::end(kEndByThemselves),
                      starts);
}

}  // namespace tf_fuse
