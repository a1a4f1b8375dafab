// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/sender/unpacked_frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/message/tensor_frame_layout.h"

namespace tf_fuse {

absl::StatusOr<std::shared_ptr<const GatheredFrame>> GatheredFrame::Make(
    std::vector<Slot> slots) {
  std::shared_ptr<GatheredFrame> made(new GatheredFrame);
  made->slots_ = std::move(slots);
  frame::FrameBuilder builder = BuilderForSlots();
  const absl::Status status =
      LayOutFrame(made->slots_, &builder, &made->bytes_);
  if (!status.ok()) return status;
  made->head_.resize(builder.header_bytes());
  builder.WriteRecords(reinterpret_cast<uint8_t*>(made->head_.data()));
  made->pieces_.push_back({0, made->head_.size(), made->head_.data()});
  for (size_t i = 0; i < made->slots_.size(); ++i) {
    const uint64_t bytes = builder.payload_bytes(i);
    if (bytes == 0) continue;
    const Slot& slot = made->slots_[i];
    const char* data = slot.serialized.data();
    if (slot.tensor.dtype() == tensorflow::DT_STRING) {
      made->written_.push_back(std::make_unique<std::string>(bytes, '\0'));
      std::string* const text = made->written_.back().get();
      WriteStrings(slot.tensor, reinterpret_cast<uint8_t*>(text->data()));
      data = text->data();
    } else if (slot.serialized.empty()) {
      data = slot.tensor.tensor_data().data();
    }
    made->pieces_.push_back({builder.payload_offset(i), bytes, data});
  }
  return std::shared_ptr<const GatheredFrame>(std::move(made));
}

void GatheredFrame::Read(uint64_t begin, uint64_t bytes, char* to) const {
  const uint64_t end = begin + bytes;
  // The last piece that begins there or before; the first begins at 0.
  auto piece = std::upper_bound(
      pieces_.begin(), pieces_.end(), begin,
      [](uint64_t at, const Piece& other) { return at < other.begin; });
  --piece;
  while (begin < end) {
    const uint64_t done = begin - piece->begin;
    const auto next = piece + 1;
    if (done < piece->bytes) {
      const uint64_t part = std::min(piece->bytes - done, end - begin);
      std::memcpy(to, piece->data + done, part);
      to += part;
      begin += part;
    }
    const uint64_t gap_end =
        next == pieces_.end() ? end : std::min(next->begin, end);
    if (begin < gap_end) {
      std::memset(to, 0, gap_end - begin);
      to += gap_end - begin;
      begin = gap_end;
    }
    piece = next;
  }
}

}  // namespace tf_fuse
