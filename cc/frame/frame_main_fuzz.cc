// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Drives the fuzz target where there is no libFuzzer. The inputs depend on the
// seed alone:
//
//   frame_fuzz_standalone INPUTS SEED   runs that many generated inputs
//   frame_fuzz_standalone FILE...       runs the given inputs (a corpus, a
//   crash)

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>

#include "frame/frame_testing.h"

namespace tf_fuse {
namespace frame {
namespace testing {

Status FuzzOne(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
using Counts = std::map<ErrorKind, uint64_t>;

// A frame (mode 0) or a script (odd modes), from random bytes.
void NextInput(Random* random, Bytes* last, Bytes* input) {
  const uint64_t choice = random->Below(8);
  if (choice < 4 || last->empty()) {
    // New: small numbers are likelier, because scripts are made of them.
    input->resize(1 + random->Below(random->Below(4) == 0 ? 400 : 60));
    for (uint8_t& byte : *input) {
      const uint64_t r = random->Next();
      byte = static_cast<uint8_t>(r % 4 == 0 ? r >> 8 : (r >> 8) % 16);
    }
    input->front() = static_cast<uint8_t>(random->Below(8) | 1);
    *last = *input;
    return;
  }
  if (choice == 4) {
    // A good frame with a few bytes changed.
    const int64_t dims[] = {static_cast<int64_t>(random->Below(9)), 2};
    EncodeLimits limits;
    limits.other_types = TestTypes();
    FrameBuilder builder(limits);
    builder.AddRaw(kUint8, dims, 2, static_cast<uint64_t>(dims[0] * 2), false);
    builder.AddStatus(1 + static_cast<uint32_t>(random->Below(16)), "message");
    builder.AddRaw(kFloat, dims, 1, 0, true);
    builder.AddBeside(kString, dims, 2);
    const bool strings = random->Below(2) == 0;
    if (strings) builder.AddStrings(kString, dims, 1, 0);
    uint64_t total = 0;
    if (!builder.Finish(&total).ok()) std::abort();
    input->assign(1 + total, 0);
    builder.WriteHeader(input->data() + 1);
    if (strings && dims[0] > 0) {
      // All ends are 0.
      std::fill(
          input->begin() + 1 + static_cast<int64_t>(builder.payload_offset(4)),
          input->end(), 0);
    }
    for (uint64_t n = random->Below(4); n > 0; --n) {
      const uint64_t at = 1 + random->Below(random->Below(2) ? total : 200);
      (*input)[at] = static_cast<uint8_t>(
          random->Below(2) ? (*input)[at] ^ (1u << random->Below(8))
                           : random->Next());
    }
    return;
  }
  // The former script with a few bytes changed, which keeps most of its slots.
  *input = *last;
  for (uint64_t n = 1 + random->Below(4); n > 0; --n) {
    const uint64_t at = random->Below(input->size());
    (*input)[at] = static_cast<uint8_t>(random->Next());
  }
  if (choice == 7) input->resize(1 + random->Below(input->size()));
}

void PrintCounts(const Counts& counts) {
  for (const auto& [kind, count] : counts) {
    std::printf("  %-20s %" PRIu64 "\n", ErrorKindName(kind), count);
  }
}

int RunGenerated(uint64_t inputs, uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  Random random(seed);
  Bytes last, input;
  Counts counts;
  const auto begin = Clock::now();
  auto shown = begin;
  const auto seconds = [&](Clock::time_point t) {
    return std::chrono::duration<double>(t - begin).count();
  };
  for (uint64_t i = 0; i < inputs; ++i) {
    NextInput(&random, &last, &input);
    ++counts[FuzzOne(input.data(), input.size()).kind()];
    if (i % 1024 != 0) continue;
    const auto now = Clock::now();
    if (now - shown < std::chrono::seconds(2)) continue;
    shown = now;
    std::printf("%" PRIu64 " of %" PRIu64 " inputs, %.0f s\n", i, inputs,
                seconds(now));
    std::fflush(stdout);
  }
  std::printf("results by kind:\n");
  PrintCounts(counts);
  std::printf("executed %" PRIu64 " inputs, seed %" PRIu64 ", %.1f s, clean\n",
              inputs, seed, seconds(Clock::now()));
  return 0;
}

int RunFiles(int count, char** paths) {
  Counts counts;
  for (int i = 0; i < count; ++i) {
    std::ifstream file(paths[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", paths[i]);
      return 2;
    }
    const Bytes input{std::istreambuf_iterator<char>(file), {}};
    ++counts[FuzzOne(input.data(), input.size()).kind()];
  }
  std::printf("results by kind:\n");
  PrintCounts(counts);
  std::printf("executed %d files, clean\n", count);
  return 0;
}

bool ParseNumber(const char* text, uint64_t* value) {
  char* end = nullptr;
  *value = std::strtoull(text, &end, 10);
  return text[0] >= '0' && text[0] <= '9' && *end == '\0';
}

}  // namespace
}  // namespace testing
}  // namespace frame
}  // namespace tf_fuse

int main(int argc, char** argv) {
  using namespace tf_fuse::frame::
      testing;  // NOLINT(google-build-using-namespace)
  uint64_t inputs = 0, seed = 0;
  if (argc == 3 && ParseNumber(argv[1], &inputs) &&
      ParseNumber(argv[2], &seed)) {
    return RunGenerated(inputs, seed);
  }
  if (argc > 1) return RunFiles(argc - 1, argv + 1);
  std::fprintf(stderr, "usage: %s INPUTS SEED | FILE...\n", argv[0]);
  return 2;
}
