// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tests of what the decoder refuses, and of the texts it gives.

#include <cstring>

#include "frame/frame_test_harness.h"

namespace tf_fuse {
namespace frame {
namespace testing {
namespace {

using Bytes = std::vector<uint8_t>;

FRAME_TEST(EveryTruncationFails) {
  const Bytes whole = SmallFrame();
  for (size_t size = 0; size < whole.size(); ++size) {
    Status status;
    EXPECT_EQ(CheckDecode(whole.data(), size, TestLimits(), &status), "");
    EXPECT_EQ(status.kind(), ErrorKind::kTruncated);
  }
  Bytes longer = whole;
  longer.push_back(0);
  Status status;
  EXPECT_EQ(CheckDecode(longer.data(), longer.size(), TestLimits(), &status),
            "");
  EXPECT_EQ(status.kind(), ErrorKind::kCorrupt);
  EXPECT_EQ(status.message(),
            "header gives a total of 385 bytes, the frame has 386");
}

// Sets eight bytes at `at` of the golden frame of strings, and decodes it.
void ExpectStringsError(size_t at, uint64_t value, const std::string& text,
                        DecodeLimits limits = TestLimits()) {
  Bytes frame = StringsFrame();
  for (size_t i = 0; i < 8; ++i) {
    frame[at + i] = static_cast<uint8_t>(value >> (8 * i));
  }
  Status status;
  EXPECT_EQ(CheckDecode(frame.data(), frame.size(), limits, &status), "");
  EXPECT_EQ(status.kind(), ErrorKind::kCorrupt);
  EXPECT_EQ(status.message(), text);
}

FRAME_TEST(StringsErrors) {
  // Records start at 32, 64 and 96; ends of slot 0 at 128, 136 and 144.
  ExpectStringsError(128, 4, "slot 0: string 0 ends at 4, expected 0 to 3");
  ExpectStringsError(128, ~0ull,
                     "slot 0: string 0 ends at 18446744073709551615, expected "
                     "0 to 3");
  ExpectStringsError(136, 0, "slot 0: string 1 ends at 0, expected 1 to 3");
  ExpectStringsError(144, 2, "slot 0: the last string ends at 2, expected 3");
  // One element more: its end would lie among the characters.
  ExpectStringsError(56, 4,
                     "slot 0: strings, but dead flag is 0 and payload size is "
                     "27 for 4 elements");
  ExpectStringsError(56, 0,
                     "slot 0: strings, but dead flag is 0 and payload size is "
                     "27 for 0 elements");
  // So many that their ends alone would not fit into uint64.
  ExpectStringsError(56, uint64_t{1} << 62,
                     "slot 0: strings, but dead flag is 0 and payload size is "
                     "27 for 4611686018427387904 elements");
  // Encoding, flags, rank and dtype: dead, and then of another type.
  ExpectStringsError(32, 0x0000000700010104,
                     "slot 0: strings, but dead flag is 1 and payload size is "
                     "27 for 3 elements");
  ExpectStringsError(32, 0x0000000800010004,
                     "slot 0: dtype 8 cannot travel as strings");
  // A value with a byte for two elements.
  ExpectStringsError(88, 3,
                     "slot 1: serialized, but dead flag is 0 and payload size "
                     "is 2 for 3 elements");
  DecodeLimits none = TestLimits();
  none.other_types = OtherTypes();
  ExpectStringsError(128, 1, "slot 0: dtype 7 cannot travel as strings", none);
  none.other_types.string_dtype = kString;
  ExpectStringsError(128, 1, "slot 1: dtype 21 cannot travel serialized", none);
}

FRAME_TEST(EverySingleByteChangeOfStrings) {
  const Bytes whole = StringsFrame();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int flip = 1; flip < 256; ++flip) {
      Bytes bytes = whole;
      bytes[at] = static_cast<uint8_t>(bytes[at] ^ flip);
      Status status;
      EXPECT_EQ(CheckDecode(bytes.data(), bytes.size(), TestLimits(), &status),
                "");
    }
  }
}

FRAME_TEST(EverySingleByteChange) {
  const Bytes whole = SmallFrame();
  int accepted = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int flip = 1; flip < 256; ++flip) {
      Bytes bytes = whole;
      bytes[at] = static_cast<uint8_t>(bytes[at] ^ flip);
      Status status;
      EXPECT_EQ(CheckDecode(bytes.data(), bytes.size(), TestLimits(), &status),
                "");
      accepted += status.ok();
    }
  }
  // A change may only pass where it makes another good frame:
  int expected = 0;
  expected += (3 + 1) * 255;  // Payload of slots 0 and 5.
  expected += 5 * 255;        // Payload of slot 3.
  expected += 2 * 4 * 255;    // Data types nobody looks at: slots 1 and 2.
  expected += 59;             // Slot 3 with 6 .. 64 bytes: zeroes follow.
  expected += 2;              // Slot 4, empty, of the other two types;
  expected += 1 + 1;          // or dead; or beside.
  expected += 7 * 255 + 25;   // Slot 2, dims {2, 5}: x * 5 within int64,
  expected += 7 * 255 + 63;   // 2 * x likewise.
  expected += 7 * 255 + 127;  // Slot 4, dims {0, 4}: {0, x}, x >= 0.
  EXPECT_EQ(accepted, expected);
}

// Sets the `bytes` bytes at `at` of a good frame to `value`, and decodes it.
void ExpectDecodeError(size_t at, size_t bytes, uint64_t value, ErrorKind kind,
                       const std::string& text,
                       DecodeLimits limits = TestLimits()) {
  Bytes frame = SmallFrame();
  for (size_t i = 0; i < bytes; ++i) {
    frame[at + i] = static_cast<uint8_t>(value >> (8 * i));
  }
  Status status;
  EXPECT_EQ(CheckDecode(frame.data(), frame.size(), limits, &status), "");
  EXPECT_EQ(status.kind(), kind);
  EXPECT_EQ(status.message(), text);
}

FRAME_TEST(HeaderErrors) {
  const ErrorKind corrupt = ErrorKind::kCorrupt;
  ExpectDecodeError(0, 4, 0x04034b50, ErrorKind::kBadMagic,
                    "not a frame: magic is 0x04034b50, expected 0x52464654");
  for (const uint64_t version : {0, 1, 2, 4, 0xFFFF}) {
    ExpectDecodeError(4, 2, version, ErrorKind::kUnsupportedVersion,
                      "frame version is " + std::to_string(version) +
                          ", this build reads version 3; install the same "
                          "tf_fuse in all tasks");
  }
  ExpectDecodeError(6, 2, 4, corrupt,
                    "header flags are 4 and reserved field is 0, expected 0 "
                    "and 0");
  ExpectDecodeError(24, 8, 9, corrupt,
                    "header flags are 0 and reserved field is 9, expected 0 "
                    "and 0");
  ExpectDecodeError(8, 4, 175, corrupt,
                    "header size is 175, expected 176 to 385 for 6 slots");
  ExpectDecodeError(8, 4, 0xFFFFFFFF, corrupt,
                    "header size is 4294967295, expected 176 to 385 for 6 "
                    "slots");
  ExpectDecodeError(8, 4, 208, corrupt,
                    "slot 0: padding from byte 208 to 256 is not zero");
  ExpectDecodeError(8, 4, 224, corrupt,
                    "slot records end at byte 216, the header at 224");
  ExpectDecodeError(12, 4, 0xFFFFFFFF, ErrorKind::kLimitExceeded,
                    "frame has 4294967295 slots, the limit is 1048576");
  ExpectDecodeError(12, 4, 1000000, corrupt,
                    "header size is 216, expected 24000032 to 385 for 1000000 "
                    "slots");
  ExpectDecodeError(12, 4, 5, corrupt,
                    "slot records end at byte 192, the header at 216");
  ExpectDecodeError(16, 8, 386, ErrorKind::kTruncated,
                    "header gives a total of 386 bytes, the frame has 385");
  ExpectDecodeError(16, 8, 384, corrupt,
                    "header gives a total of 384 bytes, the frame has 385");

  DecodeLimits limits = TestLimits();
  limits.expected_slots = 7;
  ExpectDecodeError(0, 0, 0, ErrorKind::kUnexpectedSlots,
                    "frame has 6 slots, expected 7", limits);
  limits = TestLimits();
  limits.max_slots = 5;
  ExpectDecodeError(0, 0, 0, ErrorKind::kLimitExceeded,
                    "frame has 6 slots, the limit is 5", limits);
  limits = TestLimits();
  limits.max_total_bytes = 384;
  ExpectDecodeError(0, 0, 0, ErrorKind::kLimitExceeded,
                    "frame has 385 bytes, the limit is 384", limits);
  limits = TestLimits();
  limits.element_bytes = nullptr;
  ExpectDecodeError(0, 0, 0, ErrorKind::kInvalidArgument,
                    "DecodeLimits.element_bytes is not set", limits);
}

FRAME_TEST(SlotErrors) {
  const ErrorKind corrupt = ErrorKind::kCorrupt;
  // Records start at 32, 64, 88, 128, 152 and 192.
  ExpectDecodeError(32, 1, 0, corrupt,
                    "slot 0: encoding is 0, expected 1, 2, 4 or 5");
  ExpectDecodeError(88, 1, 3, corrupt,
                    "slot 2: encoding is 3, expected 1, 2, 4 or 5");
  ExpectDecodeError(88, 1, 4, corrupt,
                    "slot 2: strings, but dead flag is 0 and payload size is 0 "
                    "for 10 elements");
  ExpectDecodeError(88, 1, 5, corrupt,
                    "slot 2: dtype 7 cannot travel serialized");
  ExpectDecodeError(192, 1, 4, corrupt,
                    "slot 5: dtype 4 cannot travel as strings");
  ExpectDecodeError(33, 1, 2, corrupt,
                    "slot 0: flags are 2 and reserved byte is 0, expected 0 or "
                    "1 and 0");
  ExpectDecodeError(35, 1, 7, corrupt,
                    "slot 0: flags are 0 and reserved byte is 7, expected 0 or "
                    "1 and 0");
  ExpectDecodeError(194, 1, 255, corrupt,
                    "slot 5: rank is 255, the maximum is 254");
  ExpectDecodeError(194, 1, 254, corrupt,
                    "slot 5: record of rank 254 needs 2056 bytes, the header "
                    "has 24 left");
  // Slot 4 of rank 3 takes 8 bytes of slot 5.
  ExpectDecodeError(154, 1, 3, corrupt,
                    "slot 5: record needs 24 bytes, the header has 16 left");
  ExpectDecodeError(36, 4, 7, corrupt,
                    "slot 0: dtype 7 cannot travel as raw bytes");
  ExpectDecodeError(36, 4, 1, corrupt,
                    "slot 0: payload size is 3, but dims and dtype 1 need 3 "
                    "elements of 4 bytes");
  ExpectDecodeError(56, 8, 4, corrupt,
                    "slot 0: payload size is 3, but dims and dtype 4 need 4 "
                    "elements of 1 bytes");
  ExpectDecodeError(56, 8, ~uint64_t{0}, corrupt,
                    "slot 0: dimension 0 is -1, must not be negative");
  ExpectDecodeError(112, 8, uint64_t{1} << 62, corrupt,
                    "slot 2: dimension 1 is 5, too many elements for int64");
  // A dead slot's payload, and one that is said to be live again.
  ExpectDecodeError(80, 8, 4, corrupt,
                    "slot 1: dead, but payload size is 4, expected 0");
  ExpectDecodeError(65, 1, 0, corrupt,
                    "slot 1: payload size is 0, but dims and dtype 1 need 1 "
                    "elements of 4 bytes");
  ExpectDecodeError(89, 1, 1, corrupt,
                    "slot 2: sent beside the frame, but dead flag is 1 and "
                    "payload size is 0, expected 0 and 0");
  ExpectDecodeError(104, 8, 9, corrupt,
                    "slot 2: sent beside the frame, but dead flag is 0 and "
                    "payload size is 9, expected 0 and 0");
  ExpectDecodeError(96, 8, 256, corrupt,
                    "slot 2: payload offset is 256, expected 0");
  ExpectDecodeError(129, 1, 1, corrupt,
                    "slot 3: serialized, but dead flag is 1 and payload size "
                    "is 5 for 1 elements");
}

FRAME_TEST(PlacementErrors) {
  const ErrorKind corrupt = ErrorKind::kCorrupt;
  // In the header, unaligned, on top of another payload, far away.
  ExpectDecodeError(40, 8, 64, corrupt,
                    "slot 0: payload offset is 64, expected 256");
  ExpectDecodeError(40, 8, 257, corrupt,
                    "slot 0: payload offset is 257, expected 256");
  ExpectDecodeError(136, 8, 256, corrupt,
                    "slot 3: payload offset is 256, expected 320");
  ExpectDecodeError(136, 8, ~uint64_t{63}, corrupt,
                    "slot 3: payload offset is 18446744073709551552, expected "
                    "320");
  ExpectDecodeError(144, 8, 66, corrupt,
                    "slot 3: payload of 66 bytes at offset 320 ends behind the "
                    "frame's 385 bytes");
  // The last payload gone: bytes are left that belong to nobody.
  ExpectDecodeError(208, 8, 0, corrupt,
                    "slot 5: payload size is 0, but dims and dtype 4 need 1 "
                    "elements of 1 bytes");
  Bytes bytes = SmallFrame();
  bytes[192] = 2;
  std::memset(bytes.data() + 200, 0, 16);
  Status status;
  EXPECT_EQ(CheckDecode(bytes.data(), bytes.size(), TestLimits(), &status), "");
  EXPECT_EQ(status.message(),
            "last payload ends at byte 325, the frame at 385");
  ExpectDecodeError(216, 1, 1, corrupt,
                    "slot 0: padding from byte 216 to 256 is not zero");
  ExpectDecodeError(383, 1, 1, corrupt,
                    "slot 5: padding from byte 325 to 384 is not zero");
}

FRAME_TEST(SizesThatWrapAround) {
  // 2^62 elements of 8 bytes are 2^65 bytes; modulo 2^64, that is 0.
  Bytes bytes;
  EXPECT_OK(Build({{Encoding::kRaw, kInt64, {0}, "", false}}, &bytes));
  bytes[32 + 24 + 7] = 0x40;
  Status status;
  EXPECT_EQ(CheckDecode(bytes.data(), bytes.size(), TestLimits(), &status), "");
  EXPECT_EQ(status.message(),
            "slot 0: payload size is 0, but dims and dtype 9 need "
            "4611686018427387904 elements of 8 bytes");
}

}  // namespace
}  // namespace testing
}  // namespace frame
}  // namespace tf_fuse
