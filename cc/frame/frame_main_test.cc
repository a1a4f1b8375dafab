// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
//   frame_test          runs all tests; exit status 1 if one failed
//   frame_test --time   prints how long encoding and decoding take

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "frame/frame_test_harness.h"

namespace tf_fuse {
namespace frame {
namespace testing {

std::vector<Test>& AllTests() {
  static std::vector<Test> tests;
  return tests;
}

int& Failures() {
  static int failures = 0;
  return failures;
}

void Report(const char* file, int line, const std::string& text) {
  // Enough to see what is wrong; a broken codec fails thousands of times.
  constexpr int kShown = 50;
  if (++Failures() <= kShown) {
    std::fprintf(stderr, "%s:%d: %s\n", file, line, text.c_str());
  }
}

// One slot of every sort.
std::vector<SlotSpec> SmallSpecs() {
  return {
      {Encoding::kRaw, kUint8, {3}, "\x01\x02\x03", false},
      {Encoding::kRaw, kFloat, {}, "", true},
      {Encoding::kBeside, kString, {2, 5}, "", false},
      {Encoding::kSerialized, kVariant, {}, "vwxyz", false},
      {Encoding::kRaw, kInt64, {0, 4}, "", false},
      {Encoding::kRaw, kUint8, {}, "\xFF", false},
  };
}

std::vector<uint8_t> SmallFrame() {
  std::vector<uint8_t> bytes;
  EXPECT_OK(Build(SmallSpecs(), &bytes));
  return bytes;
}

std::vector<SlotSpec> StringsSpecs() {
  return {
      {Encoding::kStrings,
       kString,
       {3},
       StringsPayload({"a", "", "bc"}),
       false},
      {Encoding::kSerialized, kVariant, {2}, "vw", false},
      {Encoding::kStrings, kString, {0}, "", false},
  };
}

std::vector<uint8_t> StringsFrame() {
  std::vector<uint8_t> bytes;
  EXPECT_OK(Build(StringsSpecs(), &bytes));
  return bytes;
}

namespace {

int RunAll() {
  for (const Test& test : AllTests()) {
    const int before = Failures();
    test.function();
    std::printf("%s %s\n", Failures() == before ? "ok    " : "FAILED",
                test.name);
  }
  std::printf("%zu tests, %d failed expectations\n", AllTests().size(),
              Failures());
  return Failures() == 0 && !AllTests().empty() ? 0 : 1;
}

template <typename Function>
double BestMicroseconds(Function function) {
  double best = 1e300;
  for (int i = 0; i < 200; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    function();
    const std::chrono::duration<double, std::micro> took =
        std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return best;
}

int Time() {
  for (const size_t slots : {30, 300, 10000}) {
    const int64_t dims[] = {64, 4};
    const uint64_t payload_bytes = 64 * 4 * 4;
    FrameBuilder builder;
    uint64_t total = 0;
    std::vector<uint8_t> buffer;
    DecodedFrame frame;
    bool ok = true;
    const auto layout = [&](FrameBuilder* b) {
      b->Reserve(slots);
      for (size_t i = 0; i < slots; ++i) {
        b->AddRaw(kFloat, dims, 2, payload_bytes, false);
      }
      ok = b->Finish(&total).ok() && ok;
    };
    const double fresh = BestMicroseconds([&] {
      FrameBuilder local;
      layout(&local);
    });
    layout(&builder);
    buffer.resize(total);
    const double write =
        BestMicroseconds([&] { builder.WriteHeader(buffer.data()); });
    const double decode = BestMicroseconds([&] {
      DecodedFrame local;
      ok = Decode(buffer.data(), total, TestLimits(), &local).ok() && ok;
    });
    std::printf(
        "%5zu slots of %llu bytes: layout %.2f us, write header %.2f us, "
        "decode %.2f us\n",
        slots, static_cast<unsigned long long>(payload_bytes), fresh, write,
        decode);
    if (!ok) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace testing
}  // namespace frame
}  // namespace tf_fuse

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--time") == 0) {
    return tf_fuse::frame::testing::Time();
  }
  if (argc > 1) {
    std::fprintf(stderr, "usage: %s [--time]\n", argv[0]);
    return 2;
  }
  return tf_fuse::frame::testing::RunAll();
}
