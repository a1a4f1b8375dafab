// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The packed-tensor frame: many tensors in one contiguous buffer.
//
// This codec uses the standard library only, so that it can be tested and
// fuzzed on a machine without TensorFlow. Data types are plain numbers to it
// (TensorFlow's DataType).
//
// Wire format, version 3. All integers are little-endian.
//
//   fixed header, 32 bytes
//      0  u32  magic         the bytes 'T' 'F' 'F' 'R'
//      4  u16  version       3
//      6  u16  flags         0
//      8  u32  header_bytes  fixed header plus all slot records
//     12  u32  slot_count
//     16  u64  total_bytes   the whole frame
//     24  u64  reserved      0
//   slot record, 24 + 8 * rank bytes, one per slot, in slot order
//      0  u8   encoding      Encoding below; 0 is never valid
//      1  u8   flags         bit 0: dead
//      2  u8   rank          0 .. 254
//      3  u8   reserved      0
//      4  u32  dtype
//      8  u64  payload_offset  from the frame's first byte; 0 if no payload
//     16  u64  payload_bytes
//     24  i64  dims[rank]
//   payloads, in slot order
//
// The payload of a kStrings slot is, for each element, a u64 with the end of
// its characters (from the end of this list), and then the characters of all
// elements one after the other.
//
// The layout is canonical: each payload that is not empty starts at the first
// multiple of 64 that is not below the end of what precedes it, the bytes
// skipped are zero, and the frame ends with its last payload (or with the
// records, when there is no payload). So two payloads cannot overlap, nothing
// can hide between them, and one list of slots has exactly one frame.

#ifndef TF_FUSE_CC_FRAME_FRAME_H_
#define TF_FUSE_CC_FRAME_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tf_fuse {
namespace frame {

inline constexpr uint32_t kMagic = 0x52464654;  // "TFFR" in memory order.
// Also of what one task may ask of another one: since version 3 it runs
// TfFuse>OperationGroup. A task with another version counts as one without the
// plugin.
inline constexpr uint16_t kVersion = 3;
inline constexpr size_t kFixedHeaderBytes = 32;
inline constexpr size_t kSlotRecordBytes = 24;
inline constexpr size_t kPayloadAlignment = 64;
inline constexpr size_t kMaxRank =
    254;  // tensorflow::TensorShape::MaxDimensions

// How the value of a slot travels. The numbers are part of the wire format.
enum class Encoding : uint8_t {
  kRaw = 1,      // The packed bytes are in this frame (none if dead or empty).
  kBeside = 2,   // Not in this frame: fetch it with one single receive.
  kStrings = 4,  // Strings: where each ends, then their characters.
  kSerialized = 5,  // In a form of the caller's: at least a byte per element.
};

enum class ErrorKind : int {
  kOk = 0,
  kTruncated,           // Fewer bytes than the format needs.
  kBadMagic,            // Not a frame.
  kUnsupportedVersion,  // A frame of a version that this build cannot read.
  kCorrupt,             // A field breaks a rule of the format.
  kLimitExceeded,       // Well-formed so far, but above a limit of the caller.
  kUnexpectedSlots,     // Not the number of slots that the caller asked for.
  kInvalidArgument,     // FrameBuilder only: the caller gave a bad slot.
};

// Success, or an error kind and a text that names the slot and both values.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorKind kind, std::string message)
      : kind_(kind), message_(std::move(message)) {}

  bool ok() const { return kind_ == ErrorKind::kOk; }
  ErrorKind kind() const { return kind_; }
  const std::string& message() const { return message_; }

 private:
  ErrorKind kind_ = ErrorKind::kOk;
  std::string message_;
};

// Returns the bytes of one element of `dtype`, or 0 when values of that type
// must not travel as raw bytes (strings, resources, variants, unknown numbers).
using ElementBytesFn = size_t (*)(uint32_t dtype);

// Which types travel in which other form than raw bytes.
struct OtherTypes {
  // The number of the type of strings; 0: kStrings slots are refused.
  uint32_t string_dtype = 0;
  // Returns whether values of `dtype` may be kSerialized; null: none may.
  bool (*may_be_serialized)(uint32_t dtype) = nullptr;
};

// A borrowed array of dimensions.
struct DimsView {
  const int64_t* data = nullptr;
  size_t size = 0;

  const int64_t* begin() const { return data; }
  const int64_t* end() const { return data + size; }
  int64_t operator[](size_t i) const { return data[i]; }
};

struct EncodeLimits {
  // gRPC message sizes are int32. Leave room below this for the message that
  // carries the frame.
  uint64_t max_total_bytes = 2147483647;
  // When set, AddRaw checks `bytes` against dtype and dims.
  ElementBytesFn element_bytes = nullptr;
  OtherTypes other_types;
};

// Lays out and writes a frame. The caller owns the buffer and copies payloads:
//
//   FrameBuilder builder;
//   builder.Reserve(tensors.size());
//   for (...) builder.AddRaw(dtype, dims, rank, bytes, is_dead);
//   uint64_t total_bytes = 0;
//   Status s = builder.Finish(&total_bytes);  // error: send nothing
//   uint8_t* out = <buffer of total_bytes>;
//   builder.WriteHeader(out);
//   for (...) builder.CopyPayload(i, <source>, out);
//
// A bad slot is remembered and reported by Finish(), so that Add*() calls need
// no check each. Not thread-safe; after Finish(), const methods may be called
// from several threads (payloads can be copied in parallel).
class FrameBuilder {
 public:
  explicit FrameBuilder(const EncodeLimits& limits = EncodeLimits())
      : limits_(limits) {}

  // Makes room for `slots` slots of usual rank in one allocation each.
  void Reserve(size_t slots);

  // Forgets all slots and errors; keeps memory, so a builder can be reused.
  void Clear();

  // Adds a slot whose `bytes` payload bytes the caller copies to
  // payload_offset(). A dead slot carries no payload: `bytes` is ignored, and
  // payload_bytes() is 0. Returns the slot's index.
  size_t AddRaw(uint32_t dtype, const int64_t* dims, size_t rank,
                uint64_t bytes, bool is_dead);

  // Adds a live slot of strings, as many as its dims say, with `characters`
  // bytes in all. The caller writes the payload with StringsWriter. Returns the
  // slot's index.
  size_t AddStrings(uint32_t dtype, const int64_t* dims, size_t rank,
                    uint64_t characters);

  // Adds a live slot whose payload has a form of the caller's. `bytes` is at
  // least 1, and at least the number of elements. Returns the slot's index.
  size_t AddSerialized(uint32_t dtype, const int64_t* dims, size_t rank,
                       uint64_t bytes);

  // Adds a live slot whose value the receiver fetches by a single receive.
  // `dtype` and `dims` tell it what to expect. Returns the slot's index.
  size_t AddBeside(uint32_t dtype, const int64_t* dims, size_t rank);

  // Computes all offsets and stores the frame's size. After adding another
  // slot it must be called again. Errors: kInvalidArgument for the first bad
  // slot, kLimitExceeded above max_total_bytes or where sizes overflow.
  Status Finish(uint64_t* total_bytes);

  // Writes header, records, and zeroes for all padding into `out`, which holds
  // the size Finish() gave. Afterwards only the payloads of raw, strings and
  // serialized slots are left to write. Does nothing unless Finish() succeeded.
  void WriteHeader(uint8_t* out) const;

  // Writes header and records only, header_bytes() bytes: for a frame that is
  // put together elsewhere.
  void WriteRecords(uint8_t* out) const;

  // Copies payload_bytes(slot) bytes from `source` to their place in `out`.
  // Does nothing for slots whose payload the caller does not own (dead, empty,
  // kBeside), or unless Finish() succeeded.
  void CopyPayload(size_t slot, const void* source, uint8_t* out) const;

  bool finished() const { return finished_; }
  // Valid after Finish() succeeded.
  uint64_t header_bytes() const { return header_bytes_; }
  // The slot's payload in the frame: offset (0 if empty) and size in bytes.
  // Valid after Finish() succeeded, for the index of a slot.
  uint64_t payload_offset(size_t slot) const { return slots_[slot].offset; }
  uint64_t payload_bytes(size_t slot) const { return slots_[slot].bytes; }

 private:
  struct Slot {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint32_t dtype = 0;
    Encoding encoding = Encoding::kRaw;
    uint8_t rank = 0;
    bool is_dead = false;
  };

  size_t AddLive(Encoding encoding, uint32_t dtype, const int64_t* dims,
                 size_t rank, uint64_t bytes);
  // Appends to dims_; false (and error_ set) if rank or a dimension is bad.
  bool AppendDims(const int64_t* dims, size_t rank, int64_t* elements);
  void Fail(const std::string& message);

  EncodeLimits limits_;
  std::vector<Slot> slots_;
  // The dimensions of all slots one after the other: no allocation per slot at
  // any rank.
  std::vector<int64_t> dims_;
  Status error_;
  uint64_t header_bytes_ = 0;
  uint64_t total_bytes_ = 0;
  bool finished_ = false;
};

// Writes the payload of a kStrings slot of `elements` elements, in order:
//
//   StringsWriter writer(out + builder.payload_offset(i), elements);
//   for (...) writer.Append(text);
//
// The caller appends as many elements and characters as it told the builder.
class StringsWriter {
 public:
  StringsWriter(uint8_t* payload, uint64_t elements)
      : next_end_(payload), characters_(payload + 8 * elements) {}
  void Append(std::string_view text);

 private:
  uint8_t* next_end_;
  uint8_t* const characters_;
  uint64_t end_ = 0;
};

struct DecodeLimits {
  // Required: the caller's table of element sizes.
  ElementBytesFn element_bytes = nullptr;
  OtherTypes other_types;
  // Exactly this many slots, or kUnexpectedSlots. Negative: any number.
  int64_t expected_slots = -1;
  uint32_t max_slots = 1u << 20;
  uint64_t max_total_bytes = 2147483647;
};

// One slot of a decoded frame; all numbers in it have been checked.
struct DecodedSlot {
  uint64_t payload_offset = 0;  // From the frame's start; 0 if no payload.
  uint64_t payload_bytes = 0;
  int64_t num_elements = 0;  // Product of the dims.
  size_t dims_begin = 0;     // Use DecodedFrame::dims().
  uint32_t dtype = 0;
  Encoding encoding = Encoding::kRaw;
  uint8_t rank = 0;
  bool is_dead = false;  // Only for kRaw; then there is no payload.
};

// What Decode() found: numbers, and views into the caller's buffer, valid as
// long as that buffer. Can be reused; its memory is kept.
class DecodedFrame {
 public:
  size_t size() const { return slots_.size(); }
  const DecodedSlot& operator[](size_t slot) const { return slots_[slot]; }
  const std::vector<DecodedSlot>& slots() const { return slots_; }

  // The dimensions of a slot; a copy, not bound to the buffer.
  DimsView dims(size_t slot) const {
    return {dims_.data() + slots_[slot].dims_begin, slots_[slot].rank};
  }
  // The payload's first byte in the buffer; the frame's first byte if the slot
  // has none. 64-byte aligned if the frame's first byte is.
  const uint8_t* payload(size_t slot) const {
    return data_ + slots_[slot].payload_offset;
  }
  // Element `i`, below num_elements, of a kStrings slot.
  std::string_view string(size_t slot, int64_t i) const;

 private:
  friend class Decoder;

  const uint8_t* data_ = nullptr;
  std::vector<DecodedSlot> slots_;
  std::vector<int64_t> dims_;
};

// Checks every field of the frame in data[0, size) and stores what it holds in
// `out`. Copies no payload. `data` needs no alignment. On any error `out` is
// empty. A live kRaw slot satisfies num_elements * element_bytes(dtype) ==
// payload_bytes; dims are accepted exactly where TensorFlow's TensorShape
// accepts them (the running product from the left must fit in int64). The
// elements of a kStrings slot lie within its payload, and fill it.
Status Decode(const uint8_t* data, size_t size, const DecodeLimits& limits,
              DecodedFrame* out);

}  // namespace frame
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_FRAME_FRAME_H_
