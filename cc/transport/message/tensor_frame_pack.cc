// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The sender's side of tensor_frame.h: measures and writes tensors.

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
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

uint64_t CountCharacters(const Tensor& tensor) {
  uint64_t characters = 0;
  const auto strings = tensor.flat<tensorflow::tstring>();
  for (int64_t i = 0; i < strings.size(); ++i) characters += strings(i).size();
  return characters;
}

}  // namespace

void WriteStrings(const Tensor& tensor, uint8_t* out) {
  const auto strings = tensor.flat<tensorflow::tstring>();
  frame::StringsWriter writer(out, strings.size());
  for (int64_t i = 0; i < strings.size(); ++i) {
    writer.Append({strings(i).data(), strings(i).size()});
  }
}

size_t RawElementBytes(uint32_t dtype) {
  if (!tensorflow::DataType_IsValid(static_cast<int>(dtype))) return 0;
  const auto type = static_cast<DataType>(dtype);
  // Sub-byte types (int4, uint4) fill one byte per element in memory.
  if (!tensorflow::DataTypeCanUseMemcpy(type)) return 0;
  return static_cast<size_t>(tensorflow::DataTypeSize(type));
}

bool CanBePacked(DataType type) {
  return type == tensorflow::DT_STRING || MayBeSerialized(type) ||
         RawElementBytes(type) != 0;
}

bool PreparePayload(uint64_t limit, Slot* slot, uint64_t* bytes) {
  const DataType type = slot->tensor.dtype();
  if (RawElementBytes(type) != 0) {
    *bytes = slot->tensor.TotalBytes();
    return true;
  }
  if (type == tensorflow::DT_STRING) {
    *bytes = sizeof(uint64_t) * slot->tensor.NumElements() +
             CountCharacters(slot->tensor);
    return true;
  }
  if (!MayBeSerialized(type)) return false;
  tensorflow::TensorProto proto;
  slot->tensor.AsProtoTensorContent(&proto);
  *bytes = proto.ByteSizeLong();
  // Fewer bytes than elements: the codec's rule for what is serialized.
  if (*bytes > limit ||
      *bytes < static_cast<uint64_t>(slot->tensor.NumElements()) ||
      !CanBeDecoded(proto)) {
    return false;
  }
  return proto.SerializeToString(&slot->serialized);
}

uint64_t FrameOverheadBytes(const std::vector<Slot>& slots) {
  uint64_t bytes = frame::kFixedHeaderBytes;
  for (const Slot& slot : slots) {
    bytes += frame::kSlotRecordBytes + 8 * slot.tensor.dims() +
             frame::kPayloadAlignment;
  }
  return bytes;
}

void ChooseBeside(uint64_t max_packed_tensor_bytes, uint64_t max_frame_bytes,
                  FrameReservation* reservation, std::vector<Slot>* slots) {
  std::vector<std::pair<uint64_t, size_t>> order;  // By size: the fewest go.
  // A receiver may ask for larger tensors than frames.
  const uint64_t limit = std::min(max_packed_tensor_bytes, max_frame_bytes);
  for (size_t i = 0; i < slots->size(); ++i) {
    Slot& slot = (*slots)[i];
    if (slot.is_dead || slot.beside) continue;
    uint64_t bytes = 0;
    if (PreparePayload(limit, &slot, &bytes) && bytes <= limit) {
      order.emplace_back(bytes, i);
    } else {
      slot.beside = true;
    }
  }
  std::sort(order.begin(), order.end());
  uint64_t frame_bytes = 0;
  for (const auto& [bytes, i] : order) {
    // Of increasing sizes: once one is too much, so is each that follows.
    if (frame_bytes + bytes > max_frame_bytes) {
      (*slots)[i].beside = true;
    } else {
      frame_bytes += bytes;
    }
  }
  if (reservation->Take(frame_bytes + FrameOverheadBytes(*slots))) return;
  for (const auto& [bytes, i] : order) {
    if (bytes > 0) (*slots)[i].beside = true;
  }
}

frame::FrameBuilder BuilderForSlots() {
  frame::EncodeLimits limits;
  limits.element_bytes = &RawElementBytes;
  limits.other_types = TypesThatAreNotRaw();
  return frame::FrameBuilder(limits);
}

absl::Status LayOutFrame(const std::vector<Slot>& slots,
                         frame::FrameBuilder* builder, uint64_t* total_bytes) {
  builder->Reserve(slots.size());
  for (const Slot& slot : slots) {
    const auto dims = slot.tensor.shape().dim_sizes();
    const DataType type = slot.tensor.dtype();
    if (slot.beside) {
      builder->AddBeside(type, dims.data(), dims.size());
    } else if (!slot.is_dead && type == tensorflow::DT_STRING) {
      builder->AddStrings(type, dims.data(), dims.size(),
                          CountCharacters(slot.tensor));
    } else if (!slot.is_dead && MayBeSerialized(type)) {
      builder->AddSerialized(type, dims.data(), dims.size(),
                             slot.serialized.size());
    } else {
      builder->AddRaw(type, dims.data(), dims.size(),
                      slot.is_dead ? 0 : slot.tensor.TotalBytes(),
                      slot.is_dead);
    }
  }
  const frame::Status laid_out = builder->Finish(total_bytes);
  if (!laid_out.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot pack a frame: ", laid_out.message()));
  }
  return absl::OkStatus();
}

absl::Status PackFrame(const std::vector<Slot>& slots,
                       FrameReservation* reservation, Tensor* frame) {
  frame::FrameBuilder builder = BuilderForSlots();
  uint64_t total_bytes = 0;
  const absl::Status laid_out = LayOutFrame(slots, &builder, &total_bytes);
  if (!laid_out.ok()) return laid_out;
  Tensor buffer;
  if (!AllocateFrame(total_bytes, reservation, &buffer)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory for a frame of ", total_bytes,
                     " bytes; a lower ", kMaxFrameBytesVariable,
                     " on the receiving task sends large tensors singly"));
  }
  auto* out = reinterpret_cast<uint8_t*>(
      const_cast<char*>(buffer.tensor_data().data()));
  builder.WriteHeader(out);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (builder.payload_bytes(i) == 0) continue;
    const Slot& slot = slots[i];
    if (slot.tensor.dtype() == tensorflow::DT_STRING) {
      WriteStrings(slot.tensor, out + builder.payload_offset(i));
      continue;
    }
    builder.CopyPayload(i,
                        slot.serialized.empty()
                            ? slot.tensor.tensor_data().data()
                            : slot.serialized.data(),
                        out);
  }
  *frame = std::move(buffer);
  return absl::OkStatus();
}

Slot PositionsSlot(const std::vector<size_t>& positions) {
  Slot slot;
  slot.tensor = Tensor(tensorflow::DT_INT32,
                       TensorShape({static_cast<int64_t>(positions.size())}));
  auto out = slot.tensor.vec<int32_t>();
  for (size_t i = 0; i < positions.size(); ++i) {
    out(static_cast<int64_t>(i)) = static_cast<int32_t>(positions[i]);
  }
  return slot;
}

}  // namespace tf_fuse
