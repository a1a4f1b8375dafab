// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "frame/frame.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "frame/wire.h"

namespace tf_fuse {
namespace frame {
namespace {

using std::to_string;

// Sums of sizes below this cannot overflow uint64.
constexpr uint64_t kMaxAnyBytes = uint64_t{1} << 62;

std::string SlotPrefix(size_t slot) { return "slot " + to_string(slot) + ": "; }

std::string Is(const char* what, uint64_t actual, const char* relation,
               uint64_t expected) {
  return std::string(what) + " is " + to_string(actual) + ", " + relation +
         " " + to_string(expected);
}

}  // namespace

// ---------------------------------------------------------------------------
// FrameBuilder

void FrameBuilder::Reserve(size_t slots) {
  constexpr size_t kUsualRank = 4;
  slots_.reserve(slots);
  dims_.reserve(slots * kUsualRank);
}

void FrameBuilder::Clear() {
  slots_.clear();
  dims_.clear();
  error_ = Status();
  header_bytes_ = 0;
  total_bytes_ = 0;
  finished_ = false;
}

void FrameBuilder::Fail(const std::string& message) {
  if (error_.ok()) {
    error_ = Status(ErrorKind::kInvalidArgument,
                    SlotPrefix(slots_.size()) + message);
  }
}

bool FrameBuilder::AppendDims(const int64_t* dims, size_t rank,
                              int64_t* elements) {
  if (rank > kMaxRank) {
    Fail(Is("rank", rank, "above the maximum of", kMaxRank));
    return false;
  }
  *elements = 1;
  for (size_t i = 0; i < rank; ++i) {
    if (!wire::MultiplyDim(dims[i], elements)) {
      Fail("dimension " + to_string(i) + " is " + to_string(dims[i]) +
           (dims[i] < 0 ? ", must not be negative"
                        : ", too many elements for int64"));
      return false;
    }
  }
  dims_.insert(dims_.end(), dims, dims + rank);
  return true;
}

size_t FrameBuilder::AddRaw(uint32_t dtype, const int64_t* dims, size_t rank,
                            uint64_t bytes, bool is_dead) {
  finished_ = false;
  Slot slot;
  slot.encoding = Encoding::kRaw;
  slot.dtype = dtype;
  slot.is_dead = is_dead;
  slot.bytes = is_dead ? 0 : bytes;
  int64_t elements = 0;
  if (AppendDims(dims, rank, &elements)) {
    slot.rank = static_cast<uint8_t>(rank);
    if (!is_dead && limits_.element_bytes != nullptr) {
      const uint64_t element = limits_.element_bytes(dtype);
      uint64_t expected = 0;
      if (element == 0) {
        Fail("dtype " + to_string(dtype) + " cannot travel as raw bytes");
      } else if (__builtin_mul_overflow(static_cast<uint64_t>(elements),
                                        element, &expected) ||
                 expected != bytes) {
        Fail(Is("payload size", bytes, "but dims and dtype need", elements) +
             " elements of " + to_string(element) + " bytes");
      }
    }
  }
  slots_.push_back(slot);
  return slots_.size() - 1;
}

size_t FrameBuilder::AddLive(Encoding encoding, uint32_t dtype,
                             const int64_t* dims, size_t rank, uint64_t bytes) {
  finished_ = false;
  Slot slot;
  slot.encoding = encoding;
  slot.dtype = dtype;
  slot.bytes = bytes;
  int64_t elements = 0;
  if (AppendDims(dims, rank, &elements)) {
    slot.rank = static_cast<uint8_t>(rank);
    const auto count = static_cast<uint64_t>(elements);
    if (encoding == Encoding::kStrings) {
      uint64_t ends = 0;
      if (__builtin_mul_overflow(count, sizeof(uint64_t), &ends) ||
          __builtin_add_overflow(ends, bytes, &slot.bytes)) {
        Fail(to_string(count) + " strings of " + to_string(bytes) +
             " bytes in all are too many for uint64");
      } else if (count == 0 && bytes != 0) {
        Fail(Is("size", bytes, "but no strings need", 0) + " bytes");
      }
    } else if (encoding == Encoding::kSerialized &&
               (bytes == 0 || bytes < count)) {
      Fail(Is("serialized size", bytes, "expected at least 1 and",
              static_cast<uint64_t>(count)));
    }
  }
  slots_.push_back(slot);
  return slots_.size() - 1;
}

size_t FrameBuilder::AddBeside(uint32_t dtype, const int64_t* dims,
                               size_t rank) {
  return AddLive(Encoding::kBeside, dtype, dims, rank, 0);
}

size_t FrameBuilder::AddStrings(uint32_t dtype, const int64_t* dims,
                                size_t rank, uint64_t characters) {
  if (limits_.other_types.string_dtype == 0 ||
      dtype != limits_.other_types.string_dtype) {
    Fail("dtype " + to_string(dtype) + " cannot travel as strings");
  }
  return AddLive(Encoding::kStrings, dtype, dims, rank, characters);
}

size_t FrameBuilder::AddSerialized(uint32_t dtype, const int64_t* dims,
                                   size_t rank, uint64_t bytes) {
  if (limits_.other_types.may_be_serialized == nullptr ||
      !limits_.other_types.may_be_serialized(dtype)) {
    Fail("dtype " + to_string(dtype) + " cannot travel serialized");
  }
  return AddLive(Encoding::kSerialized, dtype, dims, rank, bytes);
}

Status FrameBuilder::Finish(uint64_t* total_bytes) {
  finished_ = false;
  *total_bytes = 0;
  if (!error_.ok()) return error_;
  const uint64_t limit = std::min(limits_.max_total_bytes, kMaxAnyBytes);
  const uint64_t header = kFixedHeaderBytes + kSlotRecordBytes * slots_.size() +
                          sizeof(int64_t) * dims_.size();
  constexpr uint64_t kMaxHeader = std::numeric_limits<uint32_t>::max();
  if (header > kMaxHeader || header > limit) {
    return Status(ErrorKind::kLimitExceeded,
                  Is("frame header size", header, "above the limit of",
                     std::min(kMaxHeader, limit)) +
                      " bytes for " + to_string(slots_.size()) + " slots");
  }
  uint64_t end = header;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.offset = 0;
    if (slot.bytes == 0) continue;
    const uint64_t offset = wire::AlignUp(end, kPayloadAlignment);
    if (offset > limit || slot.bytes > limit - offset) {
      return Status(ErrorKind::kLimitExceeded,
                    SlotPrefix(i) + "payload of " + to_string(slot.bytes) +
                        " bytes at offset " + to_string(offset) +
                        " ends above the frame limit of " + to_string(limit) +
                        " bytes");
    }
    slot.offset = offset;
    end = offset + slot.bytes;
  }
  header_bytes_ = header;
  total_bytes_ = end;
  finished_ = true;
  *total_bytes = end;
  return Status();
}

void FrameBuilder::WriteRecords(uint8_t* out) const {
  if (!finished_) return;
  wire::Store<uint32_t>(out + wire::kMagicAt, kMagic);
  wire::Store<uint16_t>(out + wire::kVersionAt, kVersion);
  wire::Store<uint16_t>(out + wire::kFlagsAt, 0);
  wire::Store<uint32_t>(out + wire::kHeaderBytesAt,
                        static_cast<uint32_t>(header_bytes_));
  wire::Store<uint32_t>(out + wire::kSlotCountAt,
                        static_cast<uint32_t>(slots_.size()));
  wire::Store<uint64_t>(out + wire::kTotalBytesAt, total_bytes_);
  wire::Store<uint64_t>(out + wire::kReservedAt, 0);
  uint8_t* record = out + kFixedHeaderBytes;
  const int64_t* dims = dims_.data();
  for (const Slot& slot : slots_) {
    record[wire::kSlotEncodingAt] = static_cast<uint8_t>(slot.encoding);
    record[wire::kSlotFlagsAt] = slot.is_dead ? wire::kDeadFlag : 0;
    record[wire::kSlotRankAt] = slot.rank;
    record[wire::kSlotReservedAt] = 0;
    wire::Store<uint32_t>(record + wire::kSlotDtypeAt, slot.dtype);
    wire::Store<uint64_t>(record + wire::kSlotOffsetAt, slot.offset);
    wire::Store<uint64_t>(record + wire::kSlotBytesAt, slot.bytes);
    record += wire::kSlotDimsAt;
    for (size_t i = 0; i < slot.rank; ++i, record += sizeof(int64_t)) {
      wire::Store<int64_t>(record, *dims++);
    }
  }
}

void FrameBuilder::WriteHeader(uint8_t* out) const {
  if (!finished_) return;
  WriteRecords(out);
  uint64_t end = header_bytes_;
  for (const Slot& slot : slots_) {
    if (slot.bytes == 0) continue;
    // The buffer comes uninitialised; what lies between payloads must not
    // carry another process's memory over the wire.
    std::memset(out + end, 0, slot.offset - end);
    end = slot.offset + slot.bytes;
  }
}

void FrameBuilder::CopyPayload(size_t slot, const void* source,
                               uint8_t* out) const {
  if (!finished_ || slot >= slots_.size()) return;
  const Slot& s = slots_[slot];
  if (s.bytes == 0) return;
  std::memcpy(out + s.offset, source, s.bytes);
}

void StringsWriter::Append(std::string_view text) {
  if (!text.empty()) std::memcpy(characters_ + end_, text.data(), text.size());
  end_ += text.size();
  wire::Store<uint64_t>(next_end_, end_);
  next_end_ += sizeof(uint64_t);
}

std::string_view DecodedFrame::string(size_t slot, int64_t i) const {
  const uint8_t* ends = payload(slot);
  const auto at = static_cast<size_t>(i);
  const auto end_of = [ends](size_t index) {
    return wire::Load<uint64_t>(ends + sizeof(uint64_t) * index);
  };
  const uint64_t begin = at == 0 ? 0 : end_of(at - 1);
  const auto count = static_cast<size_t>(slots_[slot].num_elements);
  const uint8_t* characters = ends + sizeof(uint64_t) * count;
  return {reinterpret_cast<const char*>(characters + begin),
          end_of(at) - begin};
}

}  // namespace frame
}  // namespace tf_fuse
