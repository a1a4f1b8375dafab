// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Statuses of fused receives: which tensors failed, without losing anything
// that TensorFlow's error handling looks at (code, payloads).

#ifndef TF_FUSE_CC_TRANSPORT_MESSAGE_FAILED_SLOTS_H_
#define TF_FUSE_CC_TRANSPORT_MESSAGE_FAILED_SLOTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "transport/message/receive_keys.h"

namespace tf_fuse {

extern const char kFusedRequestTypeUrl[];

// 0, 1, …: every slot of `count`, or of `keys`.
std::vector<size_t> AllIndices(size_t count);
std::vector<size_t> AllIndices(const FusedKeys& keys);

// The sender's side: returns `status` with the failing slots in a payload, as
// ranges ("0-3,7"), because gRPC limits an error to a few kilobytes.
absl::Status AttachFailedIndices(const absl::Status& status,
                                 const std::vector<size_t>& indices);

// The receiver's side: the slots in that payload, or all `count` if there is
// none (the RPC itself failed) or it is not what we write. Never none: their
// error would be asked for again without end.
std::vector<size_t> FailedIndices(const absl::Status& status, size_t count);

// The sender's answer to a request whose step has not begun for a long time:
// the receiver asks again.
absl::Status PostponedError(int64_t step_id);
bool IsPostponed(const absl::Status& status);

// Without the payloads above: they are answers to one request. An error that
// one of them has given to a step must not be taken for another's answer.
absl::Status WithoutOurPayloads(const absl::Status& status);

// As TensorFlow gives it to the receives of an aborted step: of the errors of a
// step, one of a cancellation or an abort is reported only if there is no
// other.
absl::Status AsOfAbortedStep(const absl::Status& status);

// Returns `status` with a message that names each of the failing tensors, as
// far as TensorFlow's limit of messages goes, and counts the others.
// Keeps the code and the payloads (but for ours).
absl::Status NameFailedTensors(const absl::Status& status,
                               const FusedKeys& keys,
                               const std::vector<size_t>& indices);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_MESSAGE_FAILED_SLOTS_H_
