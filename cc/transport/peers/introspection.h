// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What a process reports about itself, to its own user or to another task.
// Other tasks are asked by an RPC of the transport and not by an operation: it
// is answered while executors are busy or wait, and does no harm to a task
// without the plugin (an unknown operation fails whatever else runs in that
// context).

#ifndef TF_FUSE_CC_TRANSPORT_PEERS_INTROSPECTION_H_
#define TF_FUSE_CC_TRANSPORT_PEERS_INTROSPECTION_H_

#include <string>

#include "absl/status/statusor.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

// Of this process; see the enum. Empty for a question of a newer version. The
// card has `call_token`, that of the server that is asked.
std::string AnswerQuestion(v1::Question question, uint64_t call_token = 0);

// Of a task of the connected cluster. Waits `timeout_ms` at most. Errors:
// FailedPrecondition if this process runs no server of ours in a cluster;
// Unimplemented if the task's version cannot say, or it lacks the plugin; the
// RPC's own.
absl::StatusOr<std::string> AskTask(const std::string& task,
                                    v1::Question question, int timeout_ms);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_PEERS_INTROSPECTION_H_
