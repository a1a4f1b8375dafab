// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The receiver's side of tensor_frame.h.

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/metrics.h"
#include "base/tensor_buffer.h"
#include "frame/wire.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "transport/message/check_variants.h"
#include "transport/message/tensor_frame.h"
#include "transport/message/tensor_frame_layout.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// A window on a frame that keeps the frame alive.
class FrameView : public MemoryBuffer {
 public:
  FrameView(const Tensor& frame, uint64_t offset, uint64_t bytes)
      : MemoryBuffer(const_cast<char*>(frame.tensor_data().data()) + offset,
                     bytes, "tf_fuse_frame"),
        frame_(frame) {}

  // Not owning keeps kernels from forwarding the buffer into their output, and
  // variables from adopting it: a variable would keep the whole frame alive.
  bool OwnsMemory() const override { return false; }

 private:
  const Tensor frame_;
};

// The value of slot `index`: strings, or a serialized tensor.
absl::Status ReadOther(const frame::DecodedFrame& frame, size_t index,
                       Tensor* tensor) {
  const frame::DecodedSlot& slot = frame[index];
  if (slot.encoding == frame::Encoding::kStrings) {
    auto strings = tensor->flat<tensorflow::tstring>();
    for (int64_t i = 0; i < strings.size(); ++i) {
      const std::string_view text = frame.string(index, i);
      strings(i).assign(text.data(), text.size());
    }
    return absl::OkStatus();
  }
  tensorflow::TensorProto proto;
  Tensor parsed;
  // The number of elements is what the header's shape says, which the size of
  // the payload bounds: a short proto must not ask for a huge tensor.
  if (!proto.ParseFromArray(frame.payload(index),
                            static_cast<int>(slot.payload_bytes)) ||
      proto.dtype() != tensor->dtype() ||
      !TensorShape::IsValid(proto.tensor_shape()) ||
      TensorShape(proto.tensor_shape()) != tensor->shape() ||
      !CanBeDecoded(proto) || !parsed.FromProto(proto)) {
    return absl::InternalError(absl::StrCat(
        "could not parse rpc response: slot ", index, " holds ",
        slot.payload_bytes, " bytes that are no ",
        tensorflow::DataTypeString(tensor->dtype()), " of shape ",
        tensor->shape().DebugString(),
        " to this task (for a variant: of a kind that can be in a frame)"));
  }
  *tensor = std::move(parsed);
  return absl::OkStatus();
}

// Slots beside those of the tensors: the positions and the waits.
constexpr uint64_t kMaxExtraSlots = 2;

// What follows the slots of the tensors, if anything does. `first` is the slot
// of the first.
absl::Status ReadWaits(const frame::DecodedFrame& frame, size_t first,
                       size_t tensors, std::vector<int64_t>* waits_micros) {
  waits_micros->clear();
  const size_t end = first + tensors;
  if (frame.size() == end) return absl::OkStatus();
  if (frame.size() != end + 1) {
    return absl::DataLossError(absl::StrCat(
        "bad frame: expected ", end, " slots or one more, got ", frame.size()));
  }
  const frame::DecodedSlot& slot = frame[end];
  if (slot.encoding != frame::Encoding::kRaw || slot.is_dead ||
      slot.dtype != tensorflow::DT_INT64 ||
      slot.num_elements != static_cast<int64_t>(tensors)) {
    return absl::DataLossError(absl::StrCat(
        "bad frame: the last slot is no vector of ", tensors, " int64"));
  }
  waits_micros->resize(tensors);
  // Of an empty vector there is nothing to copy from.
  if (tensors != 0) {
    std::memcpy(waits_micros->data(), frame.payload(end), slot.payload_bytes);
  }
  return absl::OkStatus();
}

absl::Status SlotError(size_t index, const std::string& text) {
  return absl::DataLossError(absl::StrCat("slot ", index, ": ", text));
}

}  // namespace

uint64_t MaxAnswerBytes(size_t tensors, uint64_t max_payload_bytes) {
  // The positions and the waits are payloads, too.
  return max_payload_bytes + BytesAroundPayloads(tensors + kMaxExtraSlots) +
         tensors * (sizeof(int32_t) + sizeof(int64_t));
}

namespace {

// An answer for at most `tensors` tensors. `around` is what it may have beside
// their payloads; `expected_slots` is -1 if the number is not known.
absl::Status DecodeFrame(const Tensor& frame, size_t tensors,
                         int64_t expected_slots, uint64_t max_payload_bytes,
                         uint64_t around, frame::DecodedFrame* decoded) {
  if (frame.dtype() != tensorflow::DT_UINT8 || frame.dims() != 1) {
    return absl::DataLossError(
        absl::StrCat("the answer is no frame: expected a uint8 vector, got ",
                     tensorflow::DataTypeString(frame.dtype()), " of shape ",
                     frame.shape().DebugString()));
  }
  const uint64_t max_bytes = max_payload_bytes + around;
  if (frame.TotalBytes() > max_bytes) {
    return absl::DataLossError(
        absl::StrCat("bad frame: ", frame.TotalBytes(), " bytes for ", tensors,
                     " tensors, at most ", max_bytes, " are accepted; ",
                     kMaxFrameBytesVariable, " (now ", max_payload_bytes,
                     ") on the receiving task raises the limit"));
  }
  frame::DecodeLimits limits;
  limits.element_bytes = &RawElementBytes;
  limits.other_types = TypesThatAreNotRaw();
  limits.expected_slots = expected_slots;
  limits.max_slots = kLimitOfKeysPerRequest + kMaxExtraSlots;
  const auto bytes = frame.tensor_data();
  const frame::Status status =
      frame::Decode(reinterpret_cast<const uint8_t*>(bytes.data()),
                    bytes.size(), limits, decoded);
  if (!status.ok()) {
    return absl::DataLossError(absl::StrCat("bad frame: ", status.message()));
  }
  return absl::OkStatus();
}

// Slot `i` of `decoded`, which is `frame`.
absl::Status ReadSlot(const Tensor& frame, const frame::DecodedFrame& decoded,
                      size_t i, DataType expected_type, bool copy_out,
                      Slot* slot) {
  const frame::DecodedSlot& in = decoded[i];
  const auto dtype = static_cast<DataType>(in.dtype);
  slot->is_dead = in.is_dead;
  slot->beside = in.encoding == frame::Encoding::kBeside;
  // A dead value has no type of its own: nothing looks at it.
  if (slot->is_dead) return absl::OkStatus();
  if (dtype != expected_type) {
    return SlotError(
        i,
        absl::StrCat("expected ", tensorflow::DataTypeString(expected_type),
                     ", the frame holds ", tensorflow::DataTypeString(dtype)));
  }
  if (slot->beside) return absl::OkStatus();
  TensorShape shape;
  const frame::DimsView dims = decoded.dims(i);
  const absl::Status shaped = TensorShape::BuildTensorShape(
      absl::Span<const int64_t>(dims.data, dims.size), &shape);
  if (!shaped.ok()) return SlotError(i, std::string(shaped.message()));
  const bool is_raw = in.encoding == frame::Encoding::kRaw;
  if (!is_raw || in.payload_bytes == 0 || copy_out) {
    Tensor copy(dtype, shape);
    if (!copy.IsInitialized()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("out of memory for the ", in.payload_bytes,
                       " bytes of tensor ", i, " of a frame"));
    }
    if (!is_raw) {
      const absl::Status read = ReadOther(decoded, i, &copy);
      if (!read.ok()) return read;
    } else if (in.payload_bytes != 0) {
      std::memcpy(const_cast<char*>(copy.tensor_data().data()),
                  decoded.payload(i), in.payload_bytes);
      Metrics::Get()->copied_tensors.fetch_add(1, std::memory_order_relaxed);
    }
    slot->tensor = std::move(copy);
    return absl::OkStatus();
  }
  auto* view = new FrameView(frame, in.payload_offset, in.payload_bytes);
  slot->tensor = Tensor(dtype, shape, view);
  view->Unref();  // The tensor holds its own reference.
  return absl::OkStatus();
}

// The first slot of an answer by parts, and how many slots follow it.
absl::Status ReadPositions(const Tensor& frame,
                           const frame::DecodedFrame& decoded, size_t asked,
                           bool with_waits, std::vector<size_t>* positions) {
  if (decoded.size() == 0) {
    return absl::DataLossError(
        "bad frame: an answer by parts has no slots, expected at least 1");
  }
  Slot first;
  const absl::Status status =
      ReadSlot(frame, decoded, 0, tensorflow::DT_INT32, true, &first);
  if (!status.ok()) return status;
  const int64_t others = static_cast<int64_t>(decoded.size()) - 1;
  const int64_t count = first.tensor.NumElements();
  if (first.is_dead || first.beside || first.tensor.dims() != 1 || count == 0 ||
      (count != others && !(with_waits && count + 1 == others))) {
    return absl::DataLossError(absl::StrCat(
        "bad frame: the first slot of an answer by parts is an int32 of shape ",
        first.tensor.shape().DebugString(), ", expected the positions of ",
        others, " tensors, and of at least 1"));
  }
  const auto given = first.tensor.vec<int32_t>();
  int64_t least = 0;
  positions->clear();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = given(i);
    if (position < least || position >= static_cast<int64_t>(asked)) {
      return absl::DataLossError(absl::StrCat(
          "bad frame: position ", i, " of an answer by parts is ", position,
          ", expected ", least, " to ", static_cast<int64_t>(asked) - 1));
    }
    least = position + 1;
    positions->push_back(static_cast<size_t>(position));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UnpackFrame(const Tensor& frame,
                         const tensorflow::DataTypeVector& expected_types,
                         const std::vector<bool>& copy_out,
                         std::vector<Slot>* slots,
                         std::vector<int64_t>* waits_micros,
                         uint64_t max_payload_bytes) {
  const size_t tensors = expected_types.size();
  const uint64_t around = BytesAroundPayloads(tensors + 1) +
                          (waits_micros != nullptr ? 8 * tensors : 0);
  // With the waits there may be one slot more.
  const int64_t expected =
      waits_micros == nullptr ? static_cast<int64_t>(tensors) : -1;
  frame::DecodedFrame decoded;
  const absl::Status status = DecodeFrame(frame, tensors, expected,
                                          max_payload_bytes, around, &decoded);
  if (!status.ok()) return status;
  if (waits_micros != nullptr) {
    const absl::Status read = ReadWaits(decoded, 0, tensors, waits_micros);
    if (!read.ok()) return read;
  }
  slots->clear();
  slots->resize(tensors);
  for (size_t i = 0; i < tensors; ++i) {
    const absl::Status read =
        ReadSlot(frame, decoded, i, expected_types[i],
                 !copy_out.empty() && copy_out[i], &(*slots)[i]);
    if (!read.ok()) return read;
  }
  return absl::OkStatus();
}

absl::Status UnpackPartialFrame(
    const Tensor& frame, const tensorflow::DataTypeVector& expected_types,
    const std::vector<bool>& copy_out, std::vector<size_t>* positions,
    std::vector<Slot>* slots, std::vector<int64_t>* waits_micros,
    uint64_t max_payload_bytes) {
  const size_t asked = expected_types.size();
  const uint64_t around =
      BytesAroundPayloads(asked + kMaxExtraSlots) +
      asked * (sizeof(int32_t) + (waits_micros != nullptr ? 8 : 0));
  frame::DecodedFrame decoded;
  absl::Status status =
      DecodeFrame(frame, asked, -1, max_payload_bytes, around, &decoded);
  if (!status.ok()) return status;
  status =
      ReadPositions(frame, decoded, asked, waits_micros != nullptr, positions);
  if (!status.ok()) return status;
  if (waits_micros != nullptr) {
    status = ReadWaits(decoded, 1, positions->size(), waits_micros);
    if (!status.ok()) return status;
  }
  slots->clear();
  slots->resize(positions->size());
  for (size_t i = 0; i < positions->size(); ++i) {
    const size_t position = (*positions)[i];
    status = ReadSlot(frame, decoded, i + 1, expected_types[position],
                      copy_out[position], &(*slots)[i]);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tf_fuse
