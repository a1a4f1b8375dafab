// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The decoder of the packed-tensor frame. Whatever it reads was written by a
// peer, so each number is checked before it is used for anything, and memory is
// reserved only for what the buffer has been shown to hold.

#include <cstring>
#include <string>

#include "frame/frame.h"
#include "frame/wire.h"

namespace tf_fuse {
namespace frame {
namespace {

using std::to_string;

bool AllZero(const uint8_t* begin, const uint8_t* end) {
  uint8_t any = 0;
  for (const uint8_t* p = begin; p != end; ++p) any |= *p;
  return any == 0;
}

std::string Hex(uint32_t value) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) {
    text += kDigits[(value >> shift) & 15];
  }
  return text;
}

}  // namespace

class Decoder {
 public:
  Decoder(const uint8_t* data, size_t size, const DecodeLimits& limits,
          DecodedFrame* out)
      : data_(data), size_(size), limits_(limits), out_(out) {}

  Status Run() {
    Clear();
    const bool ok = FixedHeader() && Records();
    if (!ok) Clear();
    return std::move(error_);
  }

 private:
  void Clear() {
    out_->data_ = nullptr;
    out_->slots_.clear();
    out_->dims_.clear();
  }

  // Error paths are kept out of line: texts are only built once one is taken.
  bool Fail(ErrorKind kind, std::string message) {
    error_ = Status(kind, std::move(message));
    return false;
  }
  bool FailSlot(size_t slot, const std::string& message) {
    return Fail(ErrorKind::kCorrupt,
                "slot " + to_string(slot) + ": " + message);
  }
  bool FailShort(size_t needed) {
    return Fail(ErrorKind::kTruncated, "frame has " + to_string(size_) +
                                           " bytes, at least " +
                                           to_string(needed) + " are needed");
  }

  bool FixedHeader();
  bool Records();
  bool Record(size_t index);
  bool Dims(size_t index, const uint8_t* dims, DecodedSlot* slot);
  bool ContentOfRaw(size_t index, const DecodedSlot& slot);
  bool ContentOfBeside(size_t index, const DecodedSlot& slot);
  bool ContentOfStrings(size_t index, const DecodedSlot& slot);
  bool ContentOfSerialized(size_t index, const DecodedSlot& slot);
  bool EndsAreInOrder(size_t index, const DecodedSlot& slot);
  bool Placement(size_t index, const DecodedSlot& slot);

  const uint8_t* const data_;
  const size_t size_;
  const DecodeLimits& limits_;
  DecodedFrame* const out_;
  Status error_;

  uint64_t header_bytes_ = 0;
  uint32_t slot_count_ = 0;
  uint64_t next_record_ = kFixedHeaderBytes;
  uint64_t end_ = 0;  // Of all that has been placed so far.
};

bool Decoder::FixedHeader() {
  if (limits_.element_bytes == nullptr) {
    return Fail(ErrorKind::kInvalidArgument,
                "DecodeLimits.element_bytes is not set");
  }
  if (size_ > limits_.max_total_bytes) {
    return Fail(ErrorKind::kLimitExceeded,
                "frame has " + to_string(size_) + " bytes, the limit is " +
                    to_string(limits_.max_total_bytes));
  }
  // Magic and version come first, and are all that other versions share.
  if (size_ < wire::kFlagsAt) return FailShort(kFixedHeaderBytes);
  const uint32_t magic = wire::Load<uint32_t>(data_ + wire::kMagicAt);
  if (magic != kMagic) {
    return Fail(ErrorKind::kBadMagic, "not a frame: magic is " + Hex(magic) +
                                          ", expected " + Hex(kMagic));
  }
  const uint16_t version = wire::Load<uint16_t>(data_ + wire::kVersionAt);
  if (version != kVersion) {
    return Fail(ErrorKind::kUnsupportedVersion,
                "frame version is " + to_string(version) +
                    ", this build reads version " + to_string(kVersion) +
                    "; install the same tf_fuse in all tasks");
  }
  if (size_ < kFixedHeaderBytes) return FailShort(kFixedHeaderBytes);
  const uint16_t flags = wire::Load<uint16_t>(data_ + wire::kFlagsAt);
  const uint64_t reserved = wire::Load<uint64_t>(data_ + wire::kReservedAt);
  if (flags != 0 || reserved != 0) {
    return Fail(ErrorKind::kCorrupt, "header flags are " + to_string(flags) +
                                         " and reserved field is " +
                                         to_string(reserved) +
                                         ", expected 0 and 0");
  }
  const uint64_t total = wire::Load<uint64_t>(data_ + wire::kTotalBytesAt);
  if (total != size_) {
    return Fail(total > size_ ? ErrorKind::kTruncated : ErrorKind::kCorrupt,
                "header gives a total of " + to_string(total) +
                    " bytes, the frame has " + to_string(size_));
  }
  slot_count_ = wire::Load<uint32_t>(data_ + wire::kSlotCountAt);
  if (limits_.expected_slots >= 0 &&
      slot_count_ != static_cast<uint64_t>(limits_.expected_slots)) {
    return Fail(ErrorKind::kUnexpectedSlots,
                "frame has " + to_string(slot_count_) + " slots, expected " +
                    to_string(limits_.expected_slots));
  }
  if (slot_count_ > limits_.max_slots) {
    return Fail(ErrorKind::kLimitExceeded,
                "frame has " + to_string(slot_count_) +
                    " slots, the limit is " + to_string(limits_.max_slots));
  }
  header_bytes_ = wire::Load<uint32_t>(data_ + wire::kHeaderBytesAt);
  const uint64_t least =
      kFixedHeaderBytes + kSlotRecordBytes * uint64_t{slot_count_};
  if (header_bytes_ < least || header_bytes_ > size_) {
    return Fail(ErrorKind::kCorrupt,
                "header size is " + to_string(header_bytes_) + ", expected " +
                    to_string(least) + " to " + to_string(size_) + " for " +
                    to_string(slot_count_) + " slots");
  }
  return true;
}

bool Decoder::Records() {
  // Both are bounded by header_bytes_, which lies within the buffer.
  out_->slots_.reserve(slot_count_);
  out_->dims_.reserve((header_bytes_ - kFixedHeaderBytes -
                       kSlotRecordBytes * uint64_t{slot_count_}) /
                      sizeof(int64_t));
  end_ = header_bytes_;
  for (size_t i = 0; i < slot_count_; ++i) {
    if (!Record(i)) return false;
  }
  if (next_record_ != header_bytes_) {
    return Fail(ErrorKind::kCorrupt,
                "slot records end at byte " + to_string(next_record_) +
                    ", the header at " + to_string(header_bytes_));
  }
  if (end_ != size_) {
    return Fail(ErrorKind::kCorrupt, "last payload ends at byte " +
                                         to_string(end_) + ", the frame at " +
                                         to_string(size_));
  }
  out_->data_ = data_;
  return true;
}

bool Decoder::Record(size_t index) {
  const uint64_t left = header_bytes_ - next_record_;
  if (left < kSlotRecordBytes) {
    return FailSlot(index, "record needs " + to_string(kSlotRecordBytes) +
                               " bytes, the header has " + to_string(left) +
                               " left");
  }
  const uint8_t* record = data_ + next_record_;
  DecodedSlot slot;
  slot.rank = record[wire::kSlotRankAt];
  if (slot.rank > kMaxRank) {
    return FailSlot(index, "rank is " + to_string(slot.rank) +
                               ", the maximum is " + to_string(kMaxRank));
  }
  const uint64_t bytes = kSlotRecordBytes + sizeof(int64_t) * slot.rank;
  if (left < bytes) {
    return FailSlot(index, "record of rank " + to_string(slot.rank) +
                               " needs " + to_string(bytes) +
                               " bytes, the header has " + to_string(left) +
                               " left");
  }
  next_record_ += bytes;

  const uint8_t flags = record[wire::kSlotFlagsAt];
  const uint8_t reserved = record[wire::kSlotReservedAt];
  if ((flags & ~wire::kDeadFlag) != 0 || reserved != 0) {
    return FailSlot(index, "flags are " + to_string(flags) +
                               " and reserved byte is " + to_string(reserved) +
                               ", expected 0 or 1 and 0");
  }
  slot.is_dead = (flags & wire::kDeadFlag) != 0;
  slot.payload_offset = wire::Load<uint64_t>(record + wire::kSlotOffsetAt);
  slot.payload_bytes = wire::Load<uint64_t>(record + wire::kSlotBytesAt);
  slot.dtype = wire::Load<uint32_t>(record + wire::kSlotDtypeAt);
  if (!Dims(index, record + wire::kSlotDimsAt, &slot)) return false;

  bool ok = false;
  switch (record[wire::kSlotEncodingAt]) {
    case static_cast<uint8_t>(Encoding::kRaw):
      slot.encoding = Encoding::kRaw;
      ok = ContentOfRaw(index, slot);
      break;
    case static_cast<uint8_t>(Encoding::kBeside):
      slot.encoding = Encoding::kBeside;
      ok = ContentOfBeside(index, slot);
      break;
    case static_cast<uint8_t>(Encoding::kStrings):
      slot.encoding = Encoding::kStrings;
      ok = ContentOfStrings(index, slot);
      break;
    case static_cast<uint8_t>(Encoding::kSerialized):
      slot.encoding = Encoding::kSerialized;
      ok = ContentOfSerialized(index, slot);
      break;
    default:
      return FailSlot(index, "encoding is " +
                                 to_string(record[wire::kSlotEncodingAt]) +
                                 ", expected 1, 2, 4 or 5");
  }
  if (!ok || !Placement(index, slot)) return false;
  if (slot.encoding == Encoding::kStrings && !EndsAreInOrder(index, slot)) {
    return false;
  }
  out_->slots_.push_back(slot);
  return true;
}

// Each string ends at or behind the one before it, and the last one ends with
// the payload.
bool Decoder::EndsAreInOrder(size_t index, const DecodedSlot& slot) {
  if (slot.payload_bytes == 0) return true;
  const auto count = static_cast<uint64_t>(slot.num_elements);
  const uint64_t characters = slot.payload_bytes - sizeof(uint64_t) * count;
  const uint8_t* next = data_ + slot.payload_offset;
  uint64_t end = 0;
  for (uint64_t i = 0; i < count; ++i, next += sizeof(uint64_t)) {
    const uint64_t begin = end;
    end = wire::Load<uint64_t>(next);
    if (end < begin || end > characters) {
      return FailSlot(index, "string " + to_string(i) + " ends at " +
                                 to_string(end) + ", expected " +
                                 to_string(begin) + " to " +
                                 to_string(characters));
    }
  }
  if (end == characters) return true;
  return FailSlot(index, "the last string ends at " + to_string(end) +
                             ", expected " + to_string(characters));
}

bool Decoder::Dims(size_t index, const uint8_t* dims, DecodedSlot* slot) {
  slot->dims_begin = out_->dims_.size();
  slot->num_elements = 1;
  for (size_t i = 0; i < slot->rank; ++i) {
    const int64_t dim = wire::Load<int64_t>(dims + sizeof(int64_t) * i);
    if (!wire::MultiplyDim(dim, &slot->num_elements)) {
      return FailSlot(index, "dimension " + to_string(i) + " is " +
                                 to_string(dim) +
                                 (dim < 0 ? ", must not be negative"
                                          : ", too many elements for int64"));
    }
    out_->dims_.push_back(dim);
  }
  return true;
}

bool Decoder::ContentOfRaw(size_t index, const DecodedSlot& slot) {
  if (slot.is_dead) {
    if (slot.payload_bytes == 0) return true;
    return FailSlot(index, "dead, but payload size is " +
                               to_string(slot.payload_bytes) + ", expected 0");
  }
  const uint64_t element = limits_.element_bytes(slot.dtype);
  if (element == 0) {
    return FailSlot(index, "dtype " + to_string(slot.dtype) +
                               " cannot travel as raw bytes");
  }
  uint64_t expected = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(slot.num_elements), element,
                             &expected) ||
      slot.payload_bytes != expected) {
    return FailSlot(index, "payload size is " + to_string(slot.payload_bytes) +
                               ", but dims and dtype " + to_string(slot.dtype) +
                               " need " + to_string(slot.num_elements) +
                               " elements of " + to_string(element) + " bytes");
  }
  return true;
}

bool Decoder::ContentOfBeside(size_t index, const DecodedSlot& slot) {
  if (!slot.is_dead && slot.payload_bytes == 0) return true;
  return FailSlot(index, "sent beside the frame, but dead flag is " +
                             to_string(slot.is_dead) + " and payload size is " +
                             to_string(slot.payload_bytes) +
                             ", expected 0 and 0");
}

bool Decoder::ContentOfStrings(size_t index, const DecodedSlot& slot) {
  if (slot.dtype == 0 || slot.dtype != limits_.other_types.string_dtype) {
    return FailSlot(
        index, "dtype " + to_string(slot.dtype) + " cannot travel as strings");
  }
  uint64_t least = 0;
  if (slot.is_dead ||
      __builtin_mul_overflow(static_cast<uint64_t>(slot.num_elements),
                             sizeof(uint64_t), &least) ||
      slot.payload_bytes < least ||
      (slot.num_elements == 0 && slot.payload_bytes != 0)) {
    return FailSlot(
        index, "strings, but dead flag is " + to_string(slot.is_dead) +
                   " and payload size is " + to_string(slot.payload_bytes) +
                   " for " + to_string(slot.num_elements) + " elements");
  }
  return true;
}

bool Decoder::ContentOfSerialized(size_t index, const DecodedSlot& slot) {
  if (limits_.other_types.may_be_serialized == nullptr ||
      !limits_.other_types.may_be_serialized(slot.dtype)) {
    return FailSlot(
        index, "dtype " + to_string(slot.dtype) + " cannot travel serialized");
  }
  if (slot.is_dead || slot.payload_bytes == 0 ||
      slot.payload_bytes < static_cast<uint64_t>(slot.num_elements)) {
    return FailSlot(
        index, "serialized, but dead flag is " + to_string(slot.is_dead) +
                   " and payload size is " + to_string(slot.payload_bytes) +
                   " for " + to_string(slot.num_elements) + " elements");
  }
  return true;
}

// The payload must lie exactly where the builder would have put it. That is
// stricter than "no overlap", and needs no sorting.
bool Decoder::Placement(size_t index, const DecodedSlot& slot) {
  const uint64_t expected =
      slot.payload_bytes == 0 ? 0 : wire::AlignUp(end_, kPayloadAlignment);
  if (slot.payload_offset != expected) {
    return FailSlot(index, "payload offset is " +
                               to_string(slot.payload_offset) + ", expected " +
                               to_string(expected));
  }
  if (slot.payload_bytes == 0) return true;
  if (expected > size_ || slot.payload_bytes > size_ - expected) {
    return FailSlot(index, "payload of " + to_string(slot.payload_bytes) +
                               " bytes at offset " + to_string(expected) +
                               " ends behind the frame's " + to_string(size_) +
                               " bytes");
  }
  if (!AllZero(data_ + end_, data_ + expected)) {
    return FailSlot(index, "padding from byte " + to_string(end_) + " to " +
                               to_string(expected) + " is not zero");
  }
  end_ = expected + slot.payload_bytes;
  return true;
}

Status Decode(const uint8_t* data, size_t size, const DecodeLimits& limits,
              DecodedFrame* out) {
  return Decoder(data, size, limits, out).Run();
}

}  // namespace frame
}  // namespace tf_fuse
