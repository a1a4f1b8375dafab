// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Drives the fuzz target where there is no libFuzzer. The inputs depend on the
// seed and the files (a corpus) alone:
//
//   frame_fuzz_standalone INPUTS SEED [FILE...]   the files, then generated
//                                                 inputs, some made of them
//   frame_fuzz_standalone FILE...                 the given inputs alone

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include "frame/frame_testing.h"

namespace tf_fuse {
namespace frame {
namespace testing {

Status FuzzOne(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
using Counts = std::map<ErrorKind, uint64_t>;

// Changes bits and bytes of what somebody wrote, or cuts it off.
void Mutate(Random* random, Bytes* input) {
  for (uint64_t n = 1 + random->Below(4); n > 0; --n) {
    // Two times in three among what is likely to be the header.
    const uint64_t size = input->size();
    const uint64_t at =
        random->Below(random->Below(3) ? std::min<uint64_t>(size, 100) : size);
    uint8_t& byte = (*input)[at];
    byte = static_cast<uint8_t>(
        random->Below(2) ? byte ^ (1u << random->Below(8)) : random->Next());
  }
  if (random->Below(8) == 0) input->resize(1 + random->Below(input->size()));
}

// A frame (mode 0) or a script (odd modes), from random bytes, or from a file.
void NextInput(Random* random, const std::vector<Bytes>& corpus, Bytes* last,
               Bytes* input) {
  if (!corpus.empty() && random->Below(3) == 0) {
    *input = corpus[random->Below(corpus.size())];
    Mutate(random, input);
    return;
  }
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
          input->begin() + 1 + static_cast<int64_t>(builder.payload_offset(3)),
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

int RunGenerated(uint64_t inputs, uint64_t seed,
                 const std::vector<Bytes>& corpus) {
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
    if (i < corpus.size()) {
      input = corpus[i];
    } else {
      NextInput(&random, corpus, &last, &input);
    }
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
  std::printf("executed %" PRIu64 " inputs, seed %" PRIu64
              ", %zu files, %.1f s, clean\n",
              inputs, seed, corpus.size(), seconds(Clock::now()));
  return 0;
}

int RunFiles(const std::vector<Bytes>& inputs) {
  Counts counts;
  for (const Bytes& input : inputs) {
    ++counts[FuzzOne(input.data(), input.size()).kind()];
  }
  std::printf("results by kind:\n");
  PrintCounts(counts);
  std::printf("executed %zu files, clean\n", inputs.size());
  return 0;
}

bool ReadFiles(char** begin, char** end, std::vector<Bytes>* inputs) {
  for (char** path = begin; path != end; ++path) {
    std::ifstream file(*path, std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", *path);
      return false;
    }
    inputs->emplace_back(std::istreambuf_iterator<char>(file),
                         std::istreambuf_iterator<char>());
  }
  return true;
}

bool ParseNumber(const char* text, uint64_t* value) {
  char* end = nullptr;
  *value = std::strtoull(text, &end, 10);
  return text[0] >= '0' && text[0] <= '9' && *end == '\0';
}

int Main(int argc, char** argv) {
  uint64_t count = 0, seed = 0;
  const bool generated =
      argc >= 3 && ParseNumber(argv[1], &count) && ParseNumber(argv[2], &seed);
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s INPUTS SEED [FILE...] | FILE...\n",
                 argv[0]);
    return 2;
  }
  std::vector<Bytes> inputs;
  if (!ReadFiles(argv + (generated ? 3 : 1), argv + argc, &inputs)) return 2;
  if (!generated) return RunFiles(inputs);
  // There is nothing to change in an empty one.
  inputs.erase(std::remove(inputs.begin(), inputs.end(), Bytes()),
               inputs.end());
  return RunGenerated(count, seed, inputs);
}

}  // namespace
}  // namespace testing
}  // namespace frame
}  // namespace tf_fuse

int main(int argc, char** argv) {
  return tf_fuse::frame::testing::Main(argc, argv);
}
