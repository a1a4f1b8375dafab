// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Drives the fuzz target where there is no libFuzzer. Inputs are mutations of
// the given files (a corpus) and scripts, and depend on the seed alone:
//
//   request_fuzz_standalone SECONDS SEED FILE...  runs generated inputs
//   request_fuzz_standalone FILE...               runs the given inputs alone

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "frame/frame_testing.h"

namespace tf_fuse {
namespace testing {

void FuzzOne(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
using Clock = std::chrono::steady_clock;
using frame::testing::Random;

constexpr char kCrash[] = "crash-request";

Bytes RandomScript(Random* random) {
  Bytes script(2 + random->Below(random->Below(4) == 0 ? 300 : 60));
  for (uint8_t& byte : script) byte = static_cast<uint8_t>(random->Next());
  script[0] = random->Below(2) == 0 ? 3 : 6;
  return script;
}

// Changes a few places: bits, bytes, and parts that are cut, doubled or taken
// from another input. Of messages this hits tags and lengths often enough.
Bytes Mutate(Random* random, Bytes input, const Bytes& other) {
  for (uint64_t n = 1 + random->Below(4); n > 0 && !input.empty(); --n) {
    const auto at = static_cast<int64_t>(random->Below(input.size()));
    const auto left = input.size() - static_cast<size_t>(at);
    const auto part =
        static_cast<int64_t>(1 + random->Below(std::min<size_t>(left, 40)));
    const auto place = input.begin() + at;
    switch (random->Below(7)) {
      case 0:
        *place = static_cast<uint8_t>(*place ^ 1u << random->Below(8));
        break;
      case 1:
        *place = static_cast<uint8_t>(random->Next());
        break;
      case 2:
        *place = static_cast<uint8_t>(*place + random->Below(5) - 2);
        break;
      case 3:
        input.erase(place, place + part);
        break;
      case 4: {
        const Bytes doubled(place, place + part);
        input.insert(place, doubled.begin(), doubled.end());
        break;
      }
      case 5: {
        if (other.empty()) break;
        const size_t from = random->Below(other.size());
        const size_t bytes =
            std::min<size_t>(other.size() - from, random->Below(40));
        input.insert(place, other.begin() + static_cast<int64_t>(from),
                     other.begin() + static_cast<int64_t>(from + bytes));
        break;
      }
      default:
        // The plan, or the options of an answer.
        if (input.size() > 2) {
          input[1 + random->Below(2)] = static_cast<uint8_t>(random->Next());
        }
    }
  }
  return input;
}

void PrintCounts() {
  const Metrics& m = *Metrics::Get();
  std::printf(
      "  served %lld, refused %lld, errors %lld, cancelled %lld, postponed "
      "%lld; received %lld, failed %lld; asked by parts %lld, again for rests "
      "%lld\n",
      static_cast<long long>(m.served_rpcs + m.served_probes),
      static_cast<long long>(m.rejected_requests),
      static_cast<long long>(m.served_errors),
      static_cast<long long>(m.cancelled_requests),
      static_cast<long long>(m.postponed_requests),
      static_cast<long long>(m.fused_rpcs), static_cast<long long>(m.errors),
      static_cast<long long>(m.dynamic_requests),
      static_cast<long long>(m.dynamic_rounds));
}

// Kept where it is run, so that what ended the process can be run again.
void Keep(const Bytes& input) {
  std::ofstream file(kCrash, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(input.data()),
             static_cast<std::streamsize>(input.size()));
}

void RunGenerated(double seconds, uint64_t seed,
                  const std::vector<Bytes>& corpus) {
  Random random(seed);
  const auto begin = Clock::now();
  auto shown = begin;
  const auto elapsed = [&] {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  uint64_t inputs = 0;
  for (; elapsed() < seconds; ++inputs) {
    Bytes input;
    if (corpus.empty() || random.Below(3) == 0) {
      input = RandomScript(&random);
    } else {
      input = Mutate(&random, corpus[random.Below(corpus.size())],
                     corpus[random.Below(corpus.size())]);
    }
    Keep(input);
    FuzzOne(input.data(), input.size());
    if (Clock::now() - shown < std::chrono::seconds(2)) continue;
    shown = Clock::now();
    std::printf("%llu inputs, %.0f of %.0f s\n",
                static_cast<unsigned long long>(inputs), elapsed(), seconds);
    std::fflush(stdout);
  }
  std::remove(kCrash);
  PrintCounts();
  std::printf("executed %llu inputs, seed %llu, %.1f s, clean\n",
              static_cast<unsigned long long>(inputs),
              static_cast<unsigned long long>(seed), elapsed());
}

bool ReadFiles(int count, char** paths, std::vector<Bytes>* inputs) {
  for (int i = 0; i < count; ++i) {
    std::ifstream file(paths[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", paths[i]);
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
  uint64_t seconds = 0, seed = 0;
  const bool generate = argc >= 3 && ParseNumber(argv[1], &seconds) &&
                        ParseNumber(argv[2], &seed);
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s SECONDS SEED FILE... | FILE...\n", argv[0]);
    return 2;
  }
  const int skip = generate ? 3 : 1;
  std::vector<Bytes> inputs;
  if (!ReadFiles(argc - skip, argv + skip, &inputs)) return 2;
  for (const Bytes& input : inputs) FuzzOne(input.data(), input.size());
  if (generate) {
    RunGenerated(static_cast<double>(seconds), seed, inputs);
  } else {
    PrintCounts();
    std::printf("executed %zu files, clean\n", inputs.size());
  }
  return 0;
}

}  // namespace
}  // namespace testing
}  // namespace tf_fuse

int main(int argc, char** argv) {
  const int status = tf_fuse::testing::Main(argc, argv);
  std::fflush(stdout);
  // TensorFlow's threads do not end; nothing is left to be destroyed.
  _exit(status);
}
