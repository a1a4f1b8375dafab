// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The rendezvous keys of one fused receive.

#ifndef TF_FUSE_CC_TRANSPORT_MESSAGE_RECEIVE_KEYS_H_
#define TF_FUSE_CC_TRANSPORT_MESSAGE_RECEIVE_KEYS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/control_flow.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/types.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

// What a _FuseRecv kernel knows when it is built. Immutable afterwards, so that
// one kernel may run for several steps and iterations at once.
struct FusedKeys {
  std::string send_device;
  uint64_t send_device_incarnation = 0;
  std::string recv_device;
  std::vector<std::string> tensor_names;
  tensorflow::DataTypeVector types;
  // Slots whose value may be kept longer than the step; empty means none.
  std::vector<bool> copy_out;
  // Slots that may be dead; empty means none.
  std::vector<bool> may_be_dead;
  // How many tensors each joint send has, from the first on; empty means none.
  std::vector<uint32_t> joint_sends;
  // The task of send_device, "/job:ps/replica:0/task:0".
  std::string send_task;
  // Serialized FuseRecvTensorRequest for the root frame: it is the same in
  // every step, and so can be recognised by the sender.
  std::string root_request;
  // FusedRendezvousKey() of all of them.
  std::string rendezvous_key;
};

// Fills send_task, root_request and rendezvous_key. Errors: InvalidArgument for
// device names that are not fully specified, and joint sends that cannot be.
absl::Status FinishFusedKeys(FusedKeys* keys);

// `report_waits`: the answer is to say how long each tensor was waited for.
v1::FuseRecvTensorRequest BuildRequest(
    const FusedKeys& keys, const tensorflow::FrameAndIter& frame_iter,
    bool report_waits = false);

// The rendezvous key of tensor `index`.
absl::Status ParseSlotKey(const FusedKeys& keys, size_t index,
                          const tensorflow::FrameAndIter& frame_iter,
                          tensorflow::Rendezvous::ParsedKey* parsed);

// How large a request is, found without keeping anything of it.
struct RequestSize {
  uint64_t message_bytes = 0;
  uint64_t keys = 0;
  uint64_t key_bytes = 0;  // Of all rendezvous keys together, at most.
};

// The sender's side, before it spends memory on a request: walks over the
// serialized message and allocates nothing. Errors: InvalidArgument for
// anything but a FuseRecvTensorRequest, and for one above a limit.
absl::StatusOr<RequestSize> MeasureRequest(const std::string& serialized);

// The sender's side: all keys of a request, parsed.
struct ParsedKeys {
  std::vector<tensorflow::Rendezvous::ParsedKey> keys;
  std::vector<uint32_t> joint_sends;  // As in FusedKeys.
  RequestSize size;
  uint64_t max_packed_tensor_bytes = 0;
  uint64_t max_frame_bytes = 0;
  // Of an iteration of a loop: no later request is equal to it.
  bool in_loop = false;
  // Without keys, a question: what is missing of that request, whether that one
  // is waited for, or another one.
  int64_t stalled_request_id = 0;
  int64_t awaited_request_id = 0;
  v1::Question question = v1::QUESTION_NONE;
  bool is_question() const {
    return stalled_request_id != 0 || awaited_request_id != 0 ||
           question != v1::QUESTION_NONE;
  }
  bool report_waits = false;
  // See the message; 0 bytes count as 1.
  uint64_t channel = 0;
  uint64_t channel_bytes = 0;
  // A key of the device that sends; there is one without tensor names, too.
  tensorflow::Rendezvous::ParsedKey source;
  // Of a request by parts: see the message.
  std::vector<int64_t> rest_of_requests;
};

// Errors: InvalidArgument for a malformed request. `size` is what
// MeasureRequest() found.
absl::StatusOr<std::shared_ptr<const ParsedKeys>> ParseRequest(
    const std::string& serialized, const RequestSize& size);

// Bytes of a rendezvous key, at most: whatever the incarnation, the frame and
// the iteration are.
uint64_t RendezvousKeyBytes(uint64_t send_device_bytes,
                            uint64_t recv_device_bytes,
                            uint64_t tensor_name_bytes);

// Type URL of a request by parts. Both it and kFusedRequestTypeUrl name the
// same message; a task that serves no such requests does not know this one, and
// so rejects them untouched instead of waiting for all tensors.
extern const char kPartialRequestTypeUrl[];

// The value of RecvTensorRequest.rendezvous_key beside a question or a probe.
// The key is invalid, so that a peer without the plugin rejects it untouched.
extern const char kFusedRendezvousKey[];

// The same for a fused request of `tensors` tensors: no valid key either, as it
// has kFusedRendezvousKey for an incarnation. It has the five parts of a key,
// since TensorFlow's worker cache takes devices and name from there when a
// session records its RPCs (RunOptions.FULL_TRACE).
std::string FusedRendezvousKey(const std::string& send_device,
                               const std::string& recv_device, size_t tensors);

// Whether `status` is the answer of a peer without the plugin to a fused
// request.
bool IsAnswerOfPlainPeer(const absl::Status& status);

// A short text for messages and traces: "300 tensors from /job:ps/... to ...".
std::string DescribeFusedKeys(const FusedKeys& keys);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_MESSAGE_RECEIVE_KEYS_H_
