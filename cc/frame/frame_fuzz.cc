// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target of the frame codec. The first byte of an input says what the rest
// is:
//
//   even  a frame, given to the decoder as it is
//   odd   a script: slots for the builder, then changes to the frame's fields.
//         So the fuzzer reaches deep checks without guessing a whole header.
//
// Every input that decodes is walked byte by byte and encoded again, which must
// give the same bytes. A broken promise ends the process.
//
// With libFuzzer:  clang++ -fsanitize=fuzzer,address,undefined
// Without:         link frame_main_fuzz.cc, which has a main() of its own.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "frame/frame_testing.h"
#include "frame/wire.h"

namespace tf_fuse {
namespace frame {
namespace testing {
namespace {

[[noreturn]] void Die(const std::string& what, const std::string& detail) {
  std::fprintf(stderr, "frame_fuzz: %s: %s\n", what.c_str(), detail.c_str());
  std::abort();
}

DecodeLimits FuzzLimits() {
  DecodeLimits limits = TestLimits();
  limits.max_slots = 40;
  return limits;
}

Status DecodeAndCheck(const std::vector<uint8_t>& bytes) {
  Status status;
  const std::string wrong =
      CheckDecode(bytes.data(), bytes.size(), FuzzLimits(), &status);
  if (!wrong.empty()) Die("the decoder broke a promise", wrong);
  return status;
}

// Numbers at which arithmetic goes wrong.
uint64_t InterestingNumber(Script* script, uint64_t near) {
  static constexpr uint64_t kNumbers[] = {
      0,         1,         2,         63,   64,        65,
      254,       255,       1u << 31,  ~0u,  1ul << 32, 1ul << 61,
      1ul << 62, INT64_MAX, 1ul << 63, ~0ul, ~0ul - 62, ~0ul - 63,
      40,        41,        300};
  const uint8_t choice = script->Byte();
  if (choice < 64) return kNumbers[choice % std::size(kNumbers)];
  if (choice < 128) return near + (choice - 96);
  if (choice < 192) return near + uint64_t{choice} * 64 - 160 * 64;
  return script->Number(choice % 9);
}

SlotSpec ScriptedSlot(Script* script) {
  static constexpr uint32_t kDtypes[] = {kFloat, kUint8, kInt64, kString};
  SlotSpec spec;
  const uint8_t what = script->Byte();
  const uint8_t shape = script->Byte();
  spec.dtype = kDtypes[shape % 3];
  spec.dims.resize(shape < 224 ? shape % 5 : shape);  // Up to rank 255.
  uint64_t elements = 1;
  for (int64_t& dim : spec.dims) {
    dim = shape < 224 ? script->Byte() % 4 : 1;
    elements *= static_cast<uint64_t>(dim);
  }
  switch (what % 8) {
    case 1:
      spec.encoding = Encoding::kBeside;
      spec.dtype = kDtypes[shape % 4];
      break;
    case 2:
      spec.is_dead = true;
      break;
    case 3: {
      spec.encoding = Encoding::kStrings;
      spec.dtype = kString;
      std::vector<std::string> strings(elements);
      for (std::string& s : strings) {
        s.assign(script->Byte() % 20, static_cast<char>(what));
      }
      spec.payload = StringsPayload(strings);
      break;
    }
    case 4:
      spec.encoding = Encoding::kSerialized;
      spec.dtype = kVariant;
      spec.payload.assign(std::max<uint64_t>(1, elements) + script->Byte() % 9,
                          static_cast<char>(what));
      break;
    default:
      spec.payload.assign(elements * ElementBytes(spec.dtype),
                          static_cast<char>(what));
  }
  return spec;
}

void Overwrite(std::vector<uint8_t>* frame, size_t at, size_t bytes,
               uint64_t value) {
  for (size_t i = 0; i < bytes && at + i < frame->size(); ++i) {
    (*frame)[at + i] = static_cast<uint8_t>(value >> (8 * i));
  }
}

// Changes one field, or the length. `records` are the offsets of the records.
void Mutate(Script* script, const std::vector<size_t>& records,
            std::vector<uint8_t>* frame) {
  struct Field {
    size_t at;
    size_t bytes;
  };
  static constexpr Field kHeader[] = {
      {wire::kMagicAt, 4},     {wire::kVersionAt, 2},
      {wire::kFlagsAt, 2},     {wire::kHeaderBytesAt, 4},
      {wire::kSlotCountAt, 4}, {wire::kTotalBytesAt, 8},
      {wire::kReservedAt, 8}};
  static constexpr Field kSlot[] = {
      {wire::kSlotEncodingAt, 1}, {wire::kSlotFlagsAt, 1},
      {wire::kSlotRankAt, 1},     {wire::kSlotReservedAt, 1},
      {wire::kSlotDtypeAt, 4},    {wire::kSlotOffsetAt, 8},
      {wire::kSlotBytesAt, 8},    {wire::kSlotDimsAt, 8},
      {wire::kSlotDimsAt + 8, 8}};
  constexpr uint64_t kLargest = 1u << 12;
  const uint8_t what = script->Byte();
  if (what < 16) {
    frame->resize(frame->size() + 1 + what, what);
  } else if (what < 32) {
    frame->resize(frame->size() - std::min<size_t>(frame->size(), what - 15));
  } else if (what < 48) {
    // Shorter or longer, and the header agrees: what else notices?
    const uint64_t near = frame->size();
    const uint64_t size =
        InterestingNumber(script, near) % (std::min(near, kLargest) * 2 + 1);
    frame->resize(size, 0);
    Overwrite(frame, wire::kTotalBytesAt, 8, size);
  } else if (what < 56) {
    // A number in a payload: perhaps where a string ends.
    const size_t at =
        script->Number(1) * kPayloadAlignment + 8 * (script->Byte() % 4);
    Overwrite(frame, at, 8, InterestingNumber(script, 0));
  } else if (what < 64) {
    const size_t at = script->Number(2) % std::max<size_t>(1, frame->size());
    Overwrite(frame, at, 1, script->Byte());
  } else {
    const bool header = what < 112 || records.empty();
    const Field field = header ? kHeader[what % std::size(kHeader)]
                               : kSlot[what % std::size(kSlot)];
    const size_t base = header ? 0 : records[script->Byte() % records.size()];
    uint64_t now = 0;
    for (size_t i = field.bytes; i-- > 0;) {
      const size_t at = base + field.at + i;
      now = now << 8 | (at < frame->size() ? (*frame)[at] : 0);
    }
    Overwrite(frame, base + field.at, field.bytes,
              InterestingNumber(script, now));
  }
}

Status RunScript(Script* script) {
  std::vector<SlotSpec> specs(script->Byte() % 10);
  for (SlotSpec& spec : specs) spec = ScriptedSlot(script);
  EncodeLimits limits;
  limits.max_total_bytes = 1u << (9 + script->Byte() % 5);
  limits.element_bytes = ElementBytes;
  std::vector<uint8_t> frame;
  Status status = Build(specs, &frame, script->Byte(), limits);
  if (!status.ok()) {
    const bool too_large =
        status.kind() == ErrorKind::kLimitExceeded && frame.empty();
    const bool bad_rank =
        std::any_of(specs.begin(), specs.end(),
                    [](const SlotSpec& s) { return s.dims.size() > kMaxRank; });
    if (!too_large && !bad_rank) Die("builder refused", status.message());
    return status;
  }
  if (frame.size() > limits.max_total_bytes) {
    Die("a frame above its limit", std::to_string(frame.size()));
  }
  status = DecodeAndCheck(frame);
  if (!status.ok()) Die("a frame of the builder", status.message());
  DecodedFrame decoded;
  const Status again =
      Decode(frame.data(), frame.size(), FuzzLimits(), &decoded);
  const std::vector<SlotSpec> got = ToSpecs(decoded);
  if (!(got == specs)) Die("slots differ after a round trip", again.message());

  std::vector<size_t> records;
  size_t record = kFixedHeaderBytes;
  for (const SlotSpec& spec : specs) {
    records.push_back(record);
    record += kSlotRecordBytes + 8 * spec.dims.size();
  }
  for (int changes = 0; changes < 8 && !script->done(); ++changes) {
    Mutate(script, records, &frame);
    status = DecodeAndCheck(frame);
  }
  return status;
}

// Sizes that no buffer could hold: only the arithmetic of the layout.
Status RunLayout(Script* script) {
  EncodeLimits limits;
  limits.max_total_bytes = InterestingNumber(script, limits.max_total_bytes);
  FrameBuilder builder(limits);
  std::vector<uint64_t> sizes;
  while (!script->done() && sizes.size() < 100) {
    sizes.push_back(InterestingNumber(script, uint64_t{1} << 30));
    builder.AddRaw(script->Byte(), nullptr, 0, sizes.back(), false);
  }
  uint64_t total = 0;
  const Status status = builder.Finish(&total);
  if (!status.ok()) return status;
  if (total > limits.max_total_bytes) Die("layout", "above its limit");
  uint64_t end = kFixedHeaderBytes + kSlotRecordBytes * sizes.size();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const uint64_t offset = builder.payload_offset(i);
    if (builder.payload_bytes(i) != sizes[i]) Die("layout", "size");
    if (sizes[i] == 0) {
      if (offset != 0) Die("layout", "offset of an empty slot");
      continue;
    }
    if (offset % kPayloadAlignment != 0 || offset < end ||
        offset - end >= kPayloadAlignment || sizes[i] > total - offset) {
      Die("layout", "offset " + std::to_string(offset));
    }
    end = offset + sizes[i];
  }
  if (end != total) Die("layout", "total " + std::to_string(total));
  return status;
}

}  // namespace

// Also called by frame_main_fuzz.cc, which counts the kinds of result.
Status FuzzOne(const uint8_t* data, size_t size) {
  if (size == 0) return DecodeAndCheck({});
  if (data[0] % 2 == 0) return DecodeAndCheck({data + 1, data + size});
  Script script(data + 1, size - 1);
  return data[0] % 8 == 7 ? RunLayout(&script) : RunScript(&script);
}

}  // namespace testing
}  // namespace frame
}  // namespace tf_fuse

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The status is the decoder's verdict on bad input, not a failure of ours.
  (void)tf_fuse::frame::testing::FuzzOne(data, size);
  return 0;
}
