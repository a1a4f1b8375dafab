// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tests of the builder, of round trips, and of the bytes on the wire.

#include <algorithm>
#include <cstring>
#include <limits>

#include "frame/frame_test_harness.h"

namespace tf_fuse {
namespace frame {
namespace testing {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes FromHex(std::string_view hex) {
  Bytes bytes;
  int digits = 0;
  for (const char c : hex) {
    if (c == ' ') continue;
    const int value = c <= '9' ? c - '0' : c - 'a' + 10;
    if (digits++ % 2 == 0) bytes.push_back(0);
    bytes.back() = static_cast<uint8_t>(bytes.back() << 4 | value);
  }
  return bytes;
}

// If this test fails, the wire format has changed: raise kVersion.
FRAME_TEST(GoldenBytes) {
  Bytes want = FromHex(
      // Magic, version, flags, header_bytes = 32 + 6 * 24 + 5 * 8, slot_count;
      // total_bytes, reserved.
      "54464652 0300 0000 d8000000 06000000"
      "8101000000000000 0000000000000000"
      // Per slot: encoding, flags, rank, reserved, dtype, offset; bytes, dims.
      // 0: uint8 {3}, 3 bytes at 256.
      "01 00 01 00 04000000 0001000000000000"
      "0300000000000000 0300000000000000"
      // 1: float {}, dead.
      "01 01 00 00 01000000 0000000000000000"
      "0000000000000000"
      // 2: string {2, 5}, beside.
      "02 00 02 00 07000000 0000000000000000"
      "0000000000000000 0200000000000000 0500000000000000"
      // 3: a variant {}, 5 bytes at 320.
      "05 00 00 00 15000000 4001000000000000"
      "0500000000000000"
      // 4: int64 {0, 4}, empty.
      "01 00 02 00 09000000 0000000000000000"
      "0000000000000000 0000000000000000 0400000000000000"
      // 5: uint8 {}, 1 byte at 384.
      "01 00 00 00 04000000 8001000000000000"
      "0100000000000000");
  EXPECT_EQ(want.size(), 216u);
  const auto payload = [&](size_t at, std::string_view hex) {
    const Bytes bytes = FromHex(hex);
    want.resize(at, 0);
    want.insert(want.end(), bytes.begin(), bytes.end());
  };
  payload(256, "010203");
  payload(320, "767778797a");
  payload(384, "ff");

  const Bytes got = SmallFrame();
  EXPECT_EQ(got.size(), want.size());
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    if (got[i] != want[i]) {
      Report(__FILE__, __LINE__,
             "byte " + Show(i) + " is " + Show(got[i]) + ", expected " +
                 Show(want[i]));
    }
  }
}

FRAME_TEST(GoldenBytesOfStrings) {
  Bytes want = FromHex(
      // header_bytes = 32 + 3 * 24 + 3 * 8, three slots.
      "54464652 0300 0000 80000000 03000000"
      "c200000000000000 0000000000000000"
      // 0: strings {3}, 27 bytes at 128.
      "04 00 01 00 07000000 8000000000000000"
      "1b00000000000000 0300000000000000"
      // 1: a variant {2}, 2 bytes at 192.
      "05 00 01 00 15000000 c000000000000000"
      "0200000000000000 0200000000000000"
      // 2: strings {0}.
      "04 00 01 00 07000000 0000000000000000"
      "0000000000000000 0000000000000000"
      // Ends 1, 1, 3; "a", "", "bc".
      "0100000000000000 0100000000000000 0300000000000000 616263");
  want.resize(192, 0);
  want.push_back('v');
  want.push_back('w');
  EXPECT_TRUE(StringsFrame() == want);
  DecodedFrame frame;
  EXPECT_OK(Decode(want.data(), want.size(), TestLimits(), &frame));
  EXPECT_TRUE(ToSpecs(frame) == StringsSpecs());
  EXPECT_EQ(frame.string(0, 0), "a");
  EXPECT_EQ(frame.string(0, 1), "");
  EXPECT_EQ(frame.string(0, 2), "bc");
}

FRAME_TEST(Views) {
  const Bytes bytes = SmallFrame();
  DecodedFrame frame;
  EXPECT_OK(Decode(bytes.data(), bytes.size(), TestLimits(), &frame));
  EXPECT_EQ(frame.size(), 6u);
  EXPECT_TRUE(ToSpecs(frame) == SmallSpecs());
  EXPECT_TRUE(frame.payload(0) == bytes.data() + 256);
  EXPECT_EQ(frame[0].num_elements, 3);
  EXPECT_EQ(frame[1].num_elements, 1);
  EXPECT_TRUE(frame[1].is_dead);
  EXPECT_TRUE(frame[2].encoding == Encoding::kBeside);
  EXPECT_EQ(frame[2].num_elements, 10);
  EXPECT_EQ(frame[3].dtype, kVariant);
  EXPECT_EQ(frame[4].num_elements, 0);
  EXPECT_EQ(frame.dims(4)[1], 4);
  EXPECT_EQ(frame.dims(5).size, 0u);
  // A frame that was used before is emptied by an error.
  EXPECT_EQ(Decode(bytes.data(), 10, TestLimits(), &frame).kind(),
            ErrorKind::kTruncated);
  EXPECT_EQ(frame.size(), 0u);
}

FRAME_TEST(NoSlots) {
  Bytes bytes;
  EXPECT_OK(Build({}, &bytes));
  EXPECT_EQ(bytes.size(), kFixedHeaderBytes);
  Status status;
  EXPECT_EQ(CheckDecode(bytes.data(), bytes.size(), TestLimits(), &status), "");
  EXPECT_OK(status);
}

FRAME_TEST(MemoryBelowDoesNotShow) {
  Bytes a, b;
  EXPECT_OK(Build(SmallSpecs(), &a, 0xAA));
  EXPECT_OK(Build(SmallSpecs(), &b, 0x55));
  EXPECT_TRUE(a == b);
}

FRAME_TEST(DeadSlotHasNoPayload) {
  FrameBuilder builder;
  const int64_t dims[] = {4};
  EXPECT_EQ(builder.AddRaw(kFloat, dims, 1, 16, /*is_dead=*/true), 0u);
  EXPECT_EQ(builder.AddRaw(kFloat, dims, 1, 16, /*is_dead=*/false), 1u);
  uint64_t total = 0;
  EXPECT_OK(builder.Finish(&total));
  EXPECT_EQ(total, 144u);
  EXPECT_EQ(builder.payload_bytes(0), 0u);
  EXPECT_EQ(builder.payload_offset(0), 0u);
  EXPECT_EQ(builder.payload_offset(1), 128u);
  Bytes bytes(total, 0xAA);
  builder.WriteHeader(bytes.data());
  const std::string source(16, '\x01');
  builder.CopyPayload(0, source.data(), bytes.data());
  EXPECT_EQ(bytes[0], 'T');
  builder.CopyPayload(1, source.data(), bytes.data());
  DecodedFrame frame;
  EXPECT_OK(Decode(bytes.data(), total, TestLimits(), &frame));
  EXPECT_TRUE(frame[0].is_dead);
  EXPECT_EQ(frame.dims(0)[0], 4);
}

FRAME_TEST(LargestRank) {
  std::vector<int64_t> dims(kMaxRank, 1);
  dims.back() = 7;
  Bytes bytes;
  EXPECT_OK(Build({{Encoding::kRaw, kUint8, dims, "abcdefg", false}}, &bytes));
  DecodedFrame frame;
  EXPECT_OK(Decode(bytes.data(), bytes.size(), TestLimits(), &frame));
  EXPECT_EQ(frame.dims(0).size, 254u);
  EXPECT_EQ(frame.dims(0)[253], 7);
  EXPECT_EQ(frame[0].num_elements, 7);
}

void ExpectBuildError(const std::vector<SlotSpec>& specs, ErrorKind kind,
                      const std::string& text,
                      EncodeLimits limits = EncodeLimits()) {
  Bytes bytes;
  const Status status = Build(specs, &bytes, 0, limits);
  EXPECT_EQ(status.kind(), kind);
  EXPECT_EQ(status.message(), text);
}

FRAME_TEST(BuilderErrors) {
  const SlotSpec good{Encoding::kRaw, kUint8, {1}, "x", false};
  EncodeLimits checked;
  checked.element_bytes = ElementBytes;
  const ErrorKind bad = ErrorKind::kInvalidArgument;
  ExpectBuildError({good, {Encoding::kRaw, kUint8, {2, -3}, "", false}}, bad,
                   "slot 1: dimension 1 is -3, must not be negative");
  ExpectBuildError({{Encoding::kBeside, 1, {int64_t{1} << 62, 2}, "", false}},
                   bad,
                   "slot 0: dimension 1 is 2, too many elements for int64");
  ExpectBuildError(
      {{Encoding::kRaw, 1, std::vector<int64_t>(255, 1), "", false}}, bad,
      "slot 0: rank is 255, above the maximum of 254");
  ExpectBuildError({good, {Encoding::kRaw, kString, {}, "x", false}}, bad,
                   "slot 1: dtype 7 cannot travel as raw bytes", checked);
  ExpectBuildError({{Encoding::kRaw, kFloat, {2}, "1234567", false}}, bad,
                   "slot 0: payload size is 7, but dims and dtype need 2 "
                   "elements of 4 bytes",
                   checked);
  // Frames of strings; Build() knows their types.
  ExpectBuildError({{Encoding::kStrings, kFloat, {1}, "12345678", false}}, bad,
                   "slot 0: dtype 1 cannot travel as strings");
  ExpectBuildError({{Encoding::kStrings, kString, {0}, "x", false}}, bad,
                   "slot 0: size is 1, but no strings need 0 bytes");
  ExpectBuildError({{Encoding::kSerialized, kFloat, {1}, "x", false}}, bad,
                   "slot 0: dtype 1 cannot travel serialized");
  ExpectBuildError({{Encoding::kSerialized, kVariant, {0}, "", false}}, bad,
                   "slot 0: serialized size is 0, expected at least 1 and 0");
  ExpectBuildError({{Encoding::kSerialized, kVariant, {2}, "x", false}}, bad,
                   "slot 0: serialized size is 1, expected at least 1 and 2");
  {
    EncodeLimits any;
    any.other_types = TestTypes();
    FrameBuilder huge(any);
    const int64_t dims[] = {int64_t{1} << 62};
    huge.AddStrings(kString, dims, 1, 0);
    uint64_t ignored = 0;
    const Status status = huge.Finish(&ignored);
    EXPECT_EQ(status.message(),
              "slot 0: 4611686018427387904 strings of 0 bytes in all are too "
              "many for uint64");
  }
  EncodeLimits small;
  small.max_total_bytes = 128;
  ExpectBuildError({good}, ErrorKind::kOk, "", small);
  ExpectBuildError({good, good}, ErrorKind::kLimitExceeded,
                   "slot 0: payload of 1 bytes at offset 128 ends above the "
                   "frame limit of 128 bytes",
                   small);
  small.max_total_bytes = 32;
  ExpectBuildError({good}, ErrorKind::kLimitExceeded,
                   "frame header size is 64, above the limit of 32 bytes for 1 "
                   "slots",
                   small);
  // A sum that leaves 62 bits, and a size that wraps around to a small one.
  EncodeLimits unlimited;
  unlimited.max_total_bytes = std::numeric_limits<uint64_t>::max();
  FrameBuilder builder(unlimited);
  for (int i = 0; i < 4; ++i) {
    builder.AddRaw(kUint8, nullptr, 0, uint64_t{1} << 61, false);
  }
  uint64_t total = 1;
  Status status = builder.Finish(&total);
  EXPECT_EQ(status.message(),
            "slot 1: payload of 2305843009213693952 bytes at offset "
            "2305843009213694080 ends above the frame limit of "
            "4611686018427387904 bytes");
  EXPECT_EQ(total, 0u);
  EXPECT_TRUE(!builder.finished());
  builder.Clear();
  builder.AddRaw(kUint8, nullptr, 0, ~uint64_t{0}, false);
  status = builder.Finish(&total);
  EXPECT_EQ(status.message(),
            "slot 0: payload of 18446744073709551615 bytes at offset 64 ends "
            "above the frame limit of 4611686018427387904 bytes");
  // Cleared, it works again, and a slot added later needs another Finish().
  builder.Clear();
  EXPECT_OK(builder.Finish(&total));
  EXPECT_EQ(total, 32u);
  builder.AddBeside(kString, nullptr, 0);
  EXPECT_TRUE(!builder.finished());
  EXPECT_OK(builder.Finish(&total));
  EXPECT_EQ(total, 56u);
}

FRAME_TEST(ManySlots) {
  std::vector<SlotSpec> specs;
  for (int i = 0; i < 10000; ++i) {
    specs.push_back({Encoding::kRaw, kFloat, {i % 5}, "", false});
    specs.back().payload = std::string(4 * (i % 5), static_cast<char>(i));
  }
  Bytes bytes;
  EXPECT_OK(Build(specs, &bytes));
  DecodedFrame frame;
  EXPECT_OK(Decode(bytes.data(), bytes.size(), TestLimits(), &frame));
  EXPECT_TRUE(ToSpecs(frame) == specs);
}

std::vector<SlotSpec> RandomSpecs(Random* random) {
  std::vector<SlotSpec> specs(random->Below(9));
  for (SlotSpec& spec : specs) {
    const uint32_t dtypes[] = {kFloat, kUint8, kInt64};
    size_t elements = 1;
    spec.dtype = dtypes[random->Below(3)];
    spec.dims.resize(random->Below(10) == 0 ? random->Below(255)
                                            : random->Below(5));
    for (int64_t& dim : spec.dims) {
      dim = elements > 1000 ? 1 : static_cast<int64_t>(random->Below(4));
      elements *= static_cast<size_t>(dim);
    }
    switch (random->Below(6)) {
      case 5: {
        spec.encoding = Encoding::kStrings;
        spec.dtype = kString;
        std::vector<std::string> strings(elements);
        for (std::string& s : strings) {
          s.assign(random->Below(9), static_cast<char>(random->Next()));
        }
        spec.payload = StringsPayload(strings);
        break;
      }
      case 1:
        spec.encoding = Encoding::kSerialized;
        spec.dtype = kVariant;
        spec.payload.assign(1 + elements + random->Below(9), 'v');
        break;
      case 0:
        spec.encoding = Encoding::kBeside;
        spec.dtype = static_cast<uint32_t>(random->Next());
        break;
      case 2:
        spec.is_dead = true;
        spec.dtype = static_cast<uint32_t>(random->Next());
        break;
      default:
        spec.payload.resize(elements * ElementBytes(spec.dtype));
        for (char& c : spec.payload) c = static_cast<char>(random->Next());
    }
  }
  return specs;
}

FRAME_TEST(RandomRoundTrips) {
  Random random(20260101);
  for (int i = 0; i < 3000; ++i) {
    const std::vector<SlotSpec> specs = RandomSpecs(&random);
    Bytes bytes;
    EXPECT_OK(Build(specs, &bytes));
    Status status;
    EXPECT_EQ(CheckDecode(bytes.data(), bytes.size(), TestLimits(), &status),
              "");
    EXPECT_OK(status);
    DecodedFrame frame;
    EXPECT_OK(Decode(bytes.data(), bytes.size(), TestLimits(), &frame));
    EXPECT_TRUE(ToSpecs(frame) == specs);
  }
}

}  // namespace
}  // namespace testing
}  // namespace frame
}  // namespace tf_fuse
