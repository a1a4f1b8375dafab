// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One call to another task by a data channel, in place of a gRPC.

#ifndef TF_FUSE_CC_TRANSPORT_PEERS_PEER_CALL_H_
#define TF_FUSE_CC_TRANSPORT_PEERS_PEER_CALL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "channel/calls/call_client.h"
#include "google/protobuf/message_lite.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

// Leads to a task while a data channel to it is open.
struct PeerCalls {
  std::string task;
  std::shared_ptr<CallClient> client;  // Null: no channel is open.
  uint64_t server = 0;                 // The task's token there.
};

// The most bytes of an answer that is a protocol buffer.
inline constexpr uint64_t kMaxAnswerMessageBytes = (uint64_t{1} << 31) - 1;

// False if nothing was sent: the channel is closed, or `request` is long; then
// the call is to go by gRPC. Else calls `done` once, perhaps on this thread; on
// one that may parse a large answer, unless that is a frame. An error has the
// text by which gRPC's client says where it comes from. A cancellation by
// `options` reaches the call; they live until `done`.
bool StartPeerCall(const PeerCalls& peer, v1::CallMethod method,
                   const google::protobuf::MessageLite& request,
                   uint64_t max_bytes, tensorflow::CallOptions* options,
                   CallDone done);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_PEERS_PEER_CALL_H_
