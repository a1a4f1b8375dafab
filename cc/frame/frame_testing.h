// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What the test and the fuzz target of the frame share: slots as plain values,
// building a frame from them, and an independent check of a decoded frame.

#ifndef TF_FUSE_CC_FRAME_FRAME_TESTING_H_
#define TF_FUSE_CC_FRAME_FRAME_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frame/frame.h"

namespace tf_fuse {
namespace frame {
namespace testing {

// Some of TensorFlow's DataType numbers.
inline constexpr uint32_t kFloat = 1, kUint8 = 4, kString = 7, kInt64 = 9,
                          kVariant = 21;

inline size_t ElementBytes(uint32_t dtype) {
  switch (dtype) {
    case kFloat:
      return 4;
    case kUint8:
      return 1;
    case kInt64:
      return 8;
    default:
      return 0;
  }
}

inline OtherTypes TestTypes() {
  return {kString, [](uint32_t dtype) { return dtype == kVariant; }};
}

inline DecodeLimits TestLimits() {
  DecodeLimits limits;
  limits.element_bytes = ElementBytes;
  limits.other_types = TestTypes();
  return limits;
}

// The name of `kind` without its "k".
inline const char* ErrorKindName(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kOk:
      return "Ok";
    case ErrorKind::kTruncated:
      return "Truncated";
    case ErrorKind::kBadMagic:
      return "BadMagic";
    case ErrorKind::kUnsupportedVersion:
      return "UnsupportedVersion";
    case ErrorKind::kCorrupt:
      return "Corrupt";
    case ErrorKind::kLimitExceeded:
      return "LimitExceeded";
    case ErrorKind::kUnexpectedSlots:
      return "UnexpectedSlots";
    case ErrorKind::kInvalidArgument:
      return "InvalidArgument";
  }
  return "Unknown";
}

struct SlotSpec {
  Encoding encoding = Encoding::kRaw;
  uint32_t dtype = kFloat;
  std::vector<int64_t> dims;
  // For kStrings what StringsPayload() gives.
  std::string payload;
  bool is_dead = false;
};

inline std::string StringsPayload(const std::vector<std::string>& strings) {
  size_t bytes = 8 * strings.size();
  for (const std::string& s : strings) bytes += s.size();
  std::string payload(bytes, '?');
  StringsWriter writer(reinterpret_cast<uint8_t*>(payload.data()),
                       strings.size());
  for (const std::string& s : strings) writer.Append(s);
  return payload;
}

inline uint64_t ElementsOf(const SlotSpec& spec) {
  uint64_t elements = 1;
  for (const int64_t dim : spec.dims) elements *= static_cast<uint64_t>(dim);
  return elements;
}

// A copy with exactly `size` bytes on the heap, so that AddressSanitizer sees
// any read beyond the frame.
class ExactBuffer {
 public:
  ExactBuffer(const uint8_t* data, size_t size)
      : data_(new uint8_t[size]), size_(size) {
    if (size > 0) std::memcpy(data_.get(), data, size);
  }
  explicit ExactBuffer(const std::vector<uint8_t>& bytes)
      : ExactBuffer(bytes.data(), bytes.size()) {}

  const uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  std::unique_ptr<uint8_t[]> data_;
  size_t size_;
};

inline void AddSlots(const std::vector<SlotSpec>& specs, FrameBuilder* b) {
  b->Reserve(specs.size());
  for (const SlotSpec& s : specs) {
    switch (s.encoding) {
      case Encoding::kRaw:
        b->AddRaw(s.dtype, s.dims.data(), s.dims.size(), s.payload.size(),
                  s.is_dead);
        break;
      case Encoding::kBeside:
        b->AddBeside(s.dtype, s.dims.data(), s.dims.size());
        break;
      case Encoding::kStrings:
        b->AddStrings(s.dtype, s.dims.data(), s.dims.size(),
                      s.payload.size() - 8 * ElementsOf(s));
        break;
      case Encoding::kSerialized:
        b->AddSerialized(s.dtype, s.dims.data(), s.dims.size(),
                         s.payload.size());
        break;
    }
  }
}

// Builds into memory filled with `fill`, which must not show in the result.
inline Status Build(const std::vector<SlotSpec>& specs,
                    std::vector<uint8_t>* out, uint8_t fill = 0xAA,
                    EncodeLimits limits = EncodeLimits()) {
  limits.other_types = TestTypes();
  FrameBuilder builder(limits);
  AddSlots(specs, &builder);
  uint64_t total = 0;
  Status status = builder.Finish(&total);
  if (!status.ok()) return status;
  out->assign(total, fill);
  builder.WriteHeader(out->data());
  for (size_t i = 0; i < specs.size(); ++i) {
    builder.CopyPayload(i, specs[i].payload.data(), out->data());
  }
  return status;
}

inline std::vector<SlotSpec> ToSpecs(const DecodedFrame& frame) {
  std::vector<SlotSpec> specs(frame.size());
  for (size_t i = 0; i < frame.size(); ++i) {
    const DecodedSlot& slot = frame[i];
    SlotSpec& spec = specs[i];
    spec.encoding = slot.encoding;
    spec.dtype = slot.dtype;
    spec.dims.assign(frame.dims(i).begin(), frame.dims(i).end());
    spec.payload.assign(reinterpret_cast<const char*>(frame.payload(i)),
                        slot.payload_bytes);
    spec.is_dead = slot.is_dead;
  }
  return specs;
}

inline bool operator==(const SlotSpec& a, const SlotSpec& b) {
  return a.encoding == b.encoding && a.dtype == b.dtype && a.dims == b.dims &&
         a.payload == b.payload && a.is_dead == b.is_dead;
}

// Checks what Decode() promises about an accepted frame, by means of its own,
// and touches every byte of every view. Returns what is wrong, or "".
inline std::string CheckAccepted(const uint8_t* data, size_t size,
                                 const DecodedFrame& frame) {
  uint64_t end = kFixedHeaderBytes + frame.size() * kSlotRecordBytes;
  for (size_t i = 0; i < frame.size(); ++i) end += 8 * frame.dims(i).size;
  if (end > size) return "records are larger than the frame";
  volatile uint8_t sink = 0;
  for (size_t i = 0; i < frame.size(); ++i) {
    const DecodedSlot& slot = frame[i];
    const std::string at = "slot " + std::to_string(i) + ": ";
    if (frame.payload(i) != data + slot.payload_offset) return at + "view";
    for (size_t b = 0; b < slot.payload_bytes; ++b) {
      sink = static_cast<uint8_t>(sink ^ frame.payload(i)[b]);
    }
    if (slot.payload_bytes == 0) {
      if (slot.payload_offset != 0) return at + "offset without payload";
    } else {
      if (slot.payload_offset % kPayloadAlignment != 0) return at + "alignment";
      if (slot.payload_offset < end) return at + "overlap";
      end = slot.payload_offset + slot.payload_bytes;
      if (end > size) return at + "payload behind the end";
    }
    uint64_t elements = 1;
    for (const int64_t dim : frame.dims(i)) {
      if (dim < 0) return at + "negative dimension";
      if (elements != 0 && dim > INT64_MAX / static_cast<int64_t>(elements)) {
        return at + "too many elements";
      }
      elements *= static_cast<uint64_t>(dim);
    }
    switch (slot.encoding) {
      case Encoding::kRaw:
        if (slot.num_elements != static_cast<int64_t>(elements)) {
          return at + "number of elements";
        }
        if (slot.is_dead) {
          if (slot.payload_bytes != 0) return at + "dead with payload";
        } else {
          const uint64_t element = ElementBytes(slot.dtype);
          // Divided, so that a product that wraps around is seen.
          if (element == 0 || slot.payload_bytes % element != 0 ||
              slot.payload_bytes / element != elements) {
            return at + "payload size";
          }
        }
        break;
      case Encoding::kBeside:
        if (slot.is_dead || slot.payload_bytes != 0) return at + "beside";
        break;
      case Encoding::kStrings: {
        const uint64_t count = static_cast<uint64_t>(slot.num_elements);
        if (slot.is_dead || count != elements ||
            slot.payload_bytes < 8 * count) {
          return at + "strings";
        }
        std::vector<std::string> strings;
        for (uint64_t n = 0; n < count; ++n) {
          strings.emplace_back(frame.string(i, static_cast<int64_t>(n)));
        }
        const std::string payload = StringsPayload(strings);
        if (payload.size() != slot.payload_bytes ||
            std::memcmp(payload.data(), frame.payload(i), payload.size()) !=
                0) {
          return at + "characters";
        }
        break;
      }
      case Encoding::kSerialized:
        if (slot.is_dead || slot.payload_bytes == 0 ||
            slot.payload_bytes < elements) {
          return at + "serialized";
        }
        break;
      default:
        return at + "encoding";
    }
  }
  if (end != size) return "bytes after the last payload";
  // A list of slots has exactly one frame: encoding again gives the same bytes.
  EncodeLimits limits;
  limits.element_bytes = ElementBytes;
  std::vector<uint8_t> again;
  const Status status = Build(ToSpecs(frame), &again, 0x55, limits);
  if (!status.ok()) return "encoding again: " + status.message();
  if (again.size() != size || std::memcmp(again.data(), data, size) != 0) {
    return "encoding again gives other bytes";
  }
  return "";
}

// Decodes an exact copy. Returns what is wrong with the decoder, or "".
inline std::string CheckDecode(const uint8_t* bytes, size_t size,
                               const DecodeLimits& limits, Status* status) {
  const ExactBuffer buffer(bytes, size);
  DecodedFrame frame;
  *status = Decode(buffer.data(), size, limits, &frame);
  if (status->ok()) return CheckAccepted(buffer.data(), size, frame);
  if (frame.size() != 0) return "slots left behind by an error";
  if (status->message().empty()) return "an error without text";
  return "";
}

// What a fuzzer's input says is to be done. Past its end all numbers are 0.
class Script {
 public:
  Script(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool done() const { return at_ >= size_; }
  uint8_t Byte() { return done() ? 0 : data_[at_++]; }
  uint64_t Number(size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | Byte();
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

// splitmix64: the same numbers on every machine, unlike <random>'s
// distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Below `n`, which is not 0.
  uint64_t Below(uint64_t n) { return Next() % n; }

 private:
  uint64_t state_;
};

}  // namespace testing
}  // namespace frame
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_FRAME_FRAME_TESTING_H_
