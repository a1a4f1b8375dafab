// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Between TensorFlow's tensors and the frame codec.

#ifndef TF_FUSE_CC_TRANSPORT_MESSAGE_TENSOR_FRAME_H_
#define TF_FUSE_CC_TRANSPORT_MESSAGE_TENSOR_FRAME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/limits.h"
#include "frame/frame.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "transport/message/unsent_frames.h"

namespace tf_fuse {

// A value on its way from one task to another.
struct Slot {
  tensorflow::Tensor tensor;
  bool is_dead = false;
  // Packing: leave the value out of the frame, the receiver fetches it singly.
  // Unpacking: the sender left it out.
  bool beside = false;
  // Packing: a resource or variant as a serialized tensorflow.TensorProto.
  std::string serialized;
};

// Bytes of one element, or 0 if values of `dtype` cannot travel as raw bytes.
size_t RawElementBytes(uint32_t dtype);

// Whether values of `type` can travel in a frame: as raw bytes, as strings, or
// serialized.
bool CanBePacked(tensorflow::DataType type);

// The bytes that the slot's value takes in a frame; false if it cannot be in
// one and has to go beside. A resource or variant of at most `limit` bytes is
// serialized here, into the slot.
bool PreparePayload(uint64_t limit, Slot* slot, uint64_t* bytes);

// Marks the live slots that are left out of a frame, and prepares the others:
// what cannot be in one or is larger than `max_packed_tensor_bytes`, the
// largest ones of payloads that have more than `max_frame_bytes` together, and
// all if receivers do not take the frames that they were sent. What is left is
// taken for `reservation`. Slots that are marked already stay so.
void ChooseBeside(uint64_t max_packed_tensor_bytes, uint64_t max_frame_bytes,
                  FrameReservation* reservation, std::vector<Slot>* slots);

// Packs `slots` into a new uint8 vector in host memory: one copy per payload.
// Those that are not dead or beside went through ChooseBeside(). `reservation`
// is what was taken for the frame, perhaps nothing. Errors: InvalidArgument for
// a type that cannot be packed.
absl::Status PackFrame(const std::vector<Slot>& slots,
                       FrameReservation* reservation,
                       tensorflow::Tensor* frame);

// Bytes of a frame with these slots beside their payloads, at most.
uint64_t FrameOverheadBytes(const std::vector<Slot>& slots);

// Decodes `frame`. Live slots are views that share its memory, and keep it
// alive; slot i is copied out instead where copy_out[i] (empty: none), so that
// a long-lived small tensor does not keep a large frame. A slot that carries an
// error makes the whole call fail with that error. `expected_types` gives the
// number of slots and their types. Errors: DataLoss for a bad frame, or one of
// more than `max_payload_bytes`;
// Internal, as a single receive gives, for a serialized value that this
// process cannot read (a variant of an unknown kind). With `waits_micros` the
// frame may have one more slot, as `report_waits` of the request says; without
// it, the vector is left empty.
absl::Status UnpackFrame(const tensorflow::Tensor& frame,
                         const tensorflow::DataTypeVector& expected_types,
                         const std::vector<bool>& copy_out,
                         std::vector<Slot>* slots,
                         std::vector<int64_t>* waits_micros = nullptr,
                         uint64_t max_payload_bytes = MaxFrameBytes());

// An answer to a request by parts: its first slot says which of the tensors
// that were asked for follow.
Slot PositionsSlot(const std::vector<size_t>& positions);

// Decodes one. `expected_types` and `copy_out` are of all that were asked for.
// `positions` are strictly increasing, and those of `slots`; `waits_micros` is
// of these. Limits and errors: as UnpackFrame().
absl::Status UnpackPartialFrame(
    const tensorflow::Tensor& frame,
    const tensorflow::DataTypeVector& expected_types,
    const std::vector<bool>& copy_out, std::vector<size_t>* positions,
    std::vector<Slot>* slots, std::vector<int64_t>* waits_micros = nullptr,
    uint64_t max_payload_bytes = MaxFrameBytes());

// How many bytes an answer for that many tensors has at most.
uint64_t MaxAnswerBytes(size_t tensors,
                        uint64_t max_payload_bytes = MaxFrameBytes());

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_MESSAGE_TENSOR_FRAME_H_
