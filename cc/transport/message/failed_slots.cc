// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/message/failed_slots.h"

#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tensorflow/core/platform/status.h"

namespace tf_fuse {

namespace {

constexpr char kFailedPayload[] = "type.googleapis.com/tf_fuse.v1.FailedSlots";

constexpr char kPostponedPayload[] = "type.googleapis.com/tf_fuse.v1.Postponed";

// gRPC carries an error in the trailing metadata, 8 KiB in all.
constexpr size_t kMaxRangesBytes = 2048;

// TensorFlow cuts messages that cross an RPC at 3 KiB, and what comes first is
// the sender's error.
constexpr size_t kMaxNamesBytes = 1024;

}  // namespace

const char kFusedRequestTypeUrl[] =
    "type.googleapis.com/tf_fuse.v1.FuseRecvTensorRequest";

std::vector<size_t> AllIndices(size_t count) {
  std::vector<size_t> indices(count);
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  return indices;
}

std::vector<size_t> AllIndices(const FusedKeys& keys) {
  return AllIndices(keys.tensor_names.size());
}

absl::Status AttachFailedIndices(const absl::Status& status,
                                 const std::vector<size_t>& indices) {
  std::string ranges;
  for (size_t i = 0; i < indices.size();) {
    size_t j = i;
    while (j + 1 < indices.size() && indices[j + 1] == indices[j] + 1) ++j;
    absl::StrAppend(&ranges, ranges.empty() ? "" : ",", indices[i], "-",
                    indices[j]);
    i = j + 1;
  }
  absl::Status result = status;
  // Without the payload the receiver names all tensors: more, never fewer. A
  // request that comes after its step was aborted has seen none of them fail.
  if (!ranges.empty() && ranges.size() <= kMaxRangesBytes) {
    result.SetPayload(kFailedPayload, absl::Cord(ranges));
  }
  return result;
}

std::vector<size_t> FailedIndices(const absl::Status& status, size_t count) {
  const std::optional<absl::Cord> payload = status.GetPayload(kFailedPayload);
  if (!payload.has_value()) return AllIndices(count);
  std::vector<size_t> indices;
  const std::string text(*payload);
  for (const auto range : absl::StrSplit(text, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    uint64_t first = 0;
    uint64_t last = 0;
    if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &first) ||
        !absl::SimpleAtoi(ends[1], &last) || first > last || last >= count ||
        (!indices.empty() && first <= indices.back())) {
      return AllIndices(count);  // Not what we wrote: trust nothing of it.
    }
    for (uint64_t i = first; i <= last; ++i) indices.push_back(i);
  }
  return indices;
}

absl::Status PostponedError(int64_t step_id) {
  // Not Unavailable: TensorFlow may retry that by itself.
  absl::Status status = absl::AbortedError(absl::StrCat(
      "fused receive of step ", step_id,
      ": the step has not begun on this task; the request may be sent again"));
  status.SetPayload(kPostponedPayload, absl::Cord("1"));
  return status;
}

bool IsPostponed(const absl::Status& status) {
  return status.GetPayload(kPostponedPayload).has_value();
}

absl::Status WithoutOurPayloads(const absl::Status& status) {
  absl::Status result = status;
  result.ErasePayload(kFailedPayload);
  result.ErasePayload(kPostponedPayload);
  return result;
}

absl::Status AsOfAbortedStep(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsAborted(status)
             ? tensorflow::StatusGroup::MakeDerived(status)
             : status;
}

absl::Status NameFailedTensors(const absl::Status& status,
                               const FusedKeys& keys,
                               const std::vector<size_t>& indices) {
  std::string message =
      absl::StrCat(status.message(), "\n\t [[fused receive of ",
                   DescribeFusedKeys(keys), "; failed: ");
  size_t bytes = 0;
  size_t named = 0;
  for (; named < indices.size(); ++named) {
    const std::string& name = keys.tensor_names[indices[named]];
    bytes += name.size() + 2;
    // One is named, however long: the others are as many as the text says.
    if (named > 0 && bytes > kMaxNamesBytes) break;
    absl::StrAppend(&message, named == 0 ? "" : ", ", name);
  }
  if (named < indices.size()) {
    absl::StrAppend(&message, " and ", indices.size() - named, " more");
  }
  absl::StrAppend(&message, "]]");
  absl::Status result(status.code(), message);
  WithoutOurPayloads(status).ForEachPayload(
      [&result](auto type_url, const absl::Cord& payload) {
        result.SetPayload(type_url, payload);
      });
  return result;
}

}  // namespace tf_fuse
