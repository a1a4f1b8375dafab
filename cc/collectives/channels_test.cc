// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
//   channels_test SECONDS SEED
//
// Chunks through a data channel of this process to itself, from many threads:
// taken and borrowed, of all sizes, cancelled at any moment, with steps that
// are aborted. Each that comes must have the right bytes, each request must be
// answered once, and at the end nothing is left. Made for ThreadSanitizer.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/borrowed_tensor.h"
#include "collectives/channel_world_testing.h"
#include "collectives/chunk_client.h"
#include "collectives/shared_slots.h"
#include "transport/metrics.h"
#include "transport/program_testing.h"

namespace tf_fuse {

namespace testing {
namespace {

using tensorflow::Tensor;

constexpr uint64_t kToken = 99;
constexpr int kThreads = 6;
constexpr int kChunks = 8;  // Of a step.

std::atomic<int64_t> posts{0};
std::atomic<int64_t> answers{0};
std::atomic<bool> wrong{false};

// The byte at `i` of chunk `chunk` of `step`.
char ByteOf(int64_t step, int chunk, uint64_t i) {
  return static_cast<char>(step * 31 + chunk * 7 + i / 97);
}

void CheckBytes(const char* data, uint64_t bytes, int64_t step, int chunk) {
  for (uint64_t i = 0; i < bytes; i += 61) {
    if (data[i] == ByteOf(step, chunk, i)) continue;
    std::fprintf(stderr, "step %lld, chunk %d, byte %llu of %llu is wrong\n",
                 static_cast<long long>(step), chunk,
                 static_cast<unsigned long long>(i),
                 static_cast<unsigned long long>(bytes));
    wrong = true;
    return;
  }
}

// One chunk: who posts it, who asks for it, and what may happen meanwhile.
class Transfer {
 public:
  Transfer(World* world, int64_t step, int chunk, std::mt19937_64* random)
      : world_(world),
        step_(step),
        chunk_(chunk),
        borrows_((*random)() % 2 == 0),
        cancels_((*random)() % 8 == 0) {
    const uint64_t limit = borrows_ ? kSlotBytes : 5 * kSlotBytes;
    const uint64_t most[] = {1, 100, 32 << 10, 64 << 10, limit};
    bytes_ = 1 + (*random)() % most[(*random)() % 5];
    source_.resize(bytes_);
    tensor_ = BorrowedTensor(source_.data(), static_cast<int64_t>(bytes_));
    for (uint64_t i = 0; i < bytes_; ++i) source_[i] = ByteOf(step_, chunk_, i);
  }

  void Post() {
    posts.fetch_add(1);
    world_->Post(step_, Key(), &tensor_, [this](const absl::Status&) {
      posts.fetch_sub(1);
      taken_.Add();
    });
  }

  void Ask() {
    const std::shared_ptr<ChunkClient> client = ChunkClient::To(world_->card);
    ChunkKey key;
    key.step_id = step_;
    key.key = Key();
    key.device = world_->devices.HostCPU()->name();
    key.device_incarnation = kIncarnation;
    key.bytes = bytes_;
    auto no_way = [] {
      std::fprintf(stderr, "the data channel is not there\n");
      wrong = true;
      std::exit(1);
    };
    if (borrows_) {
      call_ = client->Borrow(
          key, kToken,
          [this](absl::StatusOr<ChunkLoan> loan) {
            if (loan.ok()) CheckBytes(loan->data(), bytes_, step_, chunk_);
            Answered();
          },
          no_way);
    } else {
      destination_.resize(bytes_);
      call_ = client->Take(
          key, kToken, destination_.data(),
          [this](const absl::Status& status) {
            if (status.ok()) {
              CheckBytes(destination_.data(), bytes_, step_, chunk_);
            }
            Answered();
          },
          no_way);
    }
  }

  void MaybeCancel() {
    if (cancels_) call_->Cancel(absl::CancelledError("by the test"));
  }

  void Wait() {
    // A cancelled request leaves what was posted where it is.
    if (answered_.WaitFor(1) && taken_.WaitFor(1)) return;
    std::fprintf(stderr, "step %lld, chunk %d is not answered or not taken\n",
                 static_cast<long long>(step_), chunk_);
    Exit(1);  // It must not go: it may still be answered.
  }

 private:
  std::string Key() const { return absl::StrCat(step_, ":", chunk_); }
  void Answered() {
    answers.fetch_add(1);
    answered_.Add();
  }

  World* const world_;
  const int64_t step_;
  const int chunk_;
  const bool borrows_;
  const bool cancels_;
  uint64_t bytes_ = 0;
  // Not TensorFlow's: ThreadSanitizer does not see the lock of its allocator.
  std::vector<char> source_;
  Tensor tensor_;
  std::vector<char> destination_;
  std::shared_ptr<ChunkCall> call_;
  Ended answered_;
  Ended taken_;
};

void RunStep(World* world, int64_t step, std::mt19937_64* random) {
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int i = 0; i < kChunks; ++i) {
    transfers.push_back(std::make_unique<Transfer>(world, step, i, random));
  }
  const bool posts_first = (*random)() % 2 == 0;
  std::thread producer([&] {
    for (auto& transfer : transfers) transfer->Post();
  });
  if (posts_first) producer.join();
  for (auto& transfer : transfers) transfer->Ask();
  for (auto& transfer : transfers) transfer->MaybeCancel();
  if (!posts_first) producer.join();
  // Ends what was posted and is not wanted, and perhaps what still is.
  if ((*random)() % 4 != 0) absl::SleepFor(absl::Milliseconds(2));
  world->Abort(step);
  for (auto& transfer : transfers) transfer->Wait();
  world->manager.Cleanup(step);
}

int Main(double seconds, uint64_t seed) {
  World world(kToken);
  if (world.card.unix_socket().empty()) {
    std::fprintf(stderr, "no data channel could be made\n");
    return 1;
  }
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  std::atomic<int64_t> steps{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(seed * kThreads + i);
      while (absl::Now() < end && !wrong) {
        RunStep(&world, steps.fetch_add(1), &random);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Metrics* const metrics = Metrics::Get();
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  while (metrics->lent_chunks.load() != 0 && absl::Now() < limit) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  const bool clean = !wrong && posts.load() == 0 &&
                     answers.load() == steps.load() * kChunks &&
                     metrics->lent_chunks.load() == 0;
  std::printf("%lld steps, %lld answers, %lld posts and %lld loans left, %s\n",
              static_cast<long long>(steps.load()),
              static_cast<long long>(answers.load()),
              static_cast<long long>(posts.load()),
              static_cast<long long>(metrics->lent_chunks.load()),
              clean ? "clean" : "FAILED");
  return clean ? 0 : 1;
}

}  // namespace
}  // namespace testing
}  // namespace tf_fuse

int main(int argc, char** argv) {
  return tf_fuse::testing::RunForSeconds(argc, argv, &tf_fuse::testing::Main);
}
