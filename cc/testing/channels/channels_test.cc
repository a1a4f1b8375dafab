// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
//   channels_test SECONDS SEED
//
// Chunks through a data channel of this process to itself, from many threads:
// taken and borrowed, of all sizes, cancelled at any moment, with steps that
// are aborted, while the channel is lost again and again. Each that comes must
// have the right bytes, or be known to have lost them; each request must be
// answered once, and at the end nothing is left. Calls go by the same channel,
// likewise. Made for ThreadSanitizer.

#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/borrowed_tensor.h"
#include "base/metrics.h"
#include "channel/chunk_client.h"
#include "channel/shared_memory/blocks.h"
#include "testing/channels/call_cases.h"
#include "testing/channels/channel_free_cases.h"
#include "testing/channels/channel_task.h"
#include "testing/channels/connect_cases.h"
#include "testing/program_main.h"

namespace tf_fuse {

namespace testing {
namespace {

using tensorflow::Tensor;

constexpr uint64_t kToken = 99;
constexpr uint64_t kCallToken = 98;
constexpr int kThreads = 6;
constexpr int kCallers = 3;
constexpr int kChunks = 8;  // Of a step.

std::atomic<int64_t> posts{0};
std::atomic<int64_t> answers{0};
std::atomic<int64_t> lost_loans{0};
std::atomic<bool> wrong{false};

// The byte at `i` of chunk `chunk` of `step`.
char ByteOf(int64_t step, int chunk, uint64_t i) {
  return static_cast<char>(step * 31 + chunk * 7 + i / 97);
}

// False, and why, if a byte is wrong.
bool HasBytes(const char* data, uint64_t bytes, int64_t step, int chunk,
              std::string* why) {
  for (uint64_t i = 0; i < bytes; i += 61) {
    if (data[i] == ByteOf(step, chunk, i)) continue;
    *why = absl::StrCat("step ", step, ", chunk ", chunk, ", byte ", i, " of ",
                        bytes, " is wrong");
    return false;
  }
  return true;
}

void Wrong(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  wrong = true;
}

// A client that does not wait before it connects again.
std::shared_ptr<ChunkClient> ClientOf(const v1::PeerCard& card) {
  static auto* const client = new std::shared_ptr<ChunkClient>(
      std::make_shared<ChunkClient>(card, absl::ZeroDuration()));
  return *client;
}

// Shuts down one connection of this process' data channels, or a few.
void LoseChannel() {
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_un name = {};
    socklen_t size = sizeof(name);
    int listens = 1;
    socklen_t listens_size = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size) ==
            0 &&
        listens == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0 &&
        name.sun_family == AF_UNIX &&
        std::strncmp(name.sun_path + 1, "tf_fuse.", 8) == 0) {
      shutdown(fd, SHUT_RDWR);
    }
  }
  closedir(folder);
}

// One chunk: who posts it, who asks for it, and what may happen meanwhile.
class Transfer {
 public:
  Transfer(TestTask* task, int64_t step, int chunk, std::mt19937_64* random)
      : task_(task),
        step_(step),
        chunk_(chunk),
        borrows_((*random)() % 2 == 0),
        cancels_((*random)() % 8 == 0) {
    const uint64_t limit = borrows_ ? kBlockBytes : 5 * kBlockBytes;
    const uint64_t most[] = {1, 100, 32 << 10, 64 << 10, limit};
    bytes_ = 1 + (*random)() % most[(*random)() % 5];
    source_.resize(bytes_);
    tensor_ = BorrowedTensor(source_.data(), static_cast<int64_t>(bytes_));
    for (uint64_t i = 0; i < bytes_; ++i) source_[i] = ByteOf(step_, chunk_, i);
  }

  void Post() {
    posts.fetch_add(1);
    task_->Post(step_, Key(), &tensor_, [this](const absl::Status&) {
      posts.fetch_sub(1);
      taken_.Add();
    });
  }

  void Ask() {
    const std::shared_ptr<ChunkClient> client = ClientOf(task_->card);
    ChunkKey key;
    key.step_id = step_;
    key.key = Key();
    key.device = task_->devices.HostCPU()->name();
    key.device_incarnation = kIncarnation;
    key.bytes = bytes_;
    // It was lost while it was made.
    auto no_way = [this] { Answered(); };
    if (borrows_) {
      call_ = client->Borrow(
          key, kToken,
          [this](absl::StatusOr<ChunkLoan> loan) {
            if (loan.ok()) {
              CheckLoan(*loan);
              loan_ = *std::move(loan);
            }
            Answered();
          },
          no_way);
    } else {
      destination_.resize(bytes_);
      call_ = client->Take(
          key, kToken, destination_.data(),
          [this](const absl::Status& status) {
            std::string why;
            if (status.ok() &&
                !HasBytes(destination_.data(), bytes_, step_, chunk_, &why)) {
              Wrong(why);
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
    if (answered_.WaitFor(1) && taken_.WaitFor(1)) {
      // Its channel may have been lost since.
      if (loan_.data() != nullptr) CheckLoan(loan_);
      loan_.GiveBack();
      return;
    }
    std::fprintf(stderr, "step %lld, chunk %d is not answered or not taken\n",
                 static_cast<long long>(step_), chunk_);
    Exit(1);  // It must not go: it may still be answered.
  }

 private:
  void CheckLoan(const ChunkLoan& loan) {
    std::string why;
    const bool right = HasBytes(loan.data(), bytes_, step_, chunk_, &why);
    if (!loan.intact()) {
      lost_loans.fetch_add(1);
    } else if (!right) {
      Wrong(why);
    }
  }
  std::string Key() const { return absl::StrCat(step_, ":", chunk_); }
  void Answered() {
    answers.fetch_add(1);
    answered_.Add();
  }

  TestTask* const task_;
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
  ChunkLoan loan_;
  Ended answered_;
  Ended taken_;
};

void RunStep(TestTask* task, int64_t step, std::mt19937_64* random) {
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int i = 0; i < kChunks; ++i) {
    transfers.push_back(std::make_unique<Transfer>(task, step, i, random));
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
  task->Abort(step);
  for (auto& transfer : transfers) transfer->Wait();
  task->manager.Cleanup(step);
}

// Borrows a chunk of nothing but `byte`, once the channel can be made.
ChunkLoan BorrowPosted(TestTask* task, uint64_t bytes, char byte) {
  static int64_t step = 0;
  std::vector<char> source(bytes, byte);
  const Tensor tensor =
      BorrowedTensor(source.data(), static_cast<int64_t>(bytes));
  const absl::Time patience = absl::Now() + absl::Seconds(60);
  ChunkLoan result;
  while (result.data() == nullptr && absl::Now() < patience) {
    ChunkKey key;
    key.step_id = --step;
    key.key = "loan";
    key.device = task->devices.HostCPU()->name();
    key.device_incarnation = kIncarnation;
    key.bytes = bytes;
    Ended posted;
    Ended answered;
    task->Post(step, key.key, &tensor,
               [&posted](const absl::Status&) { posted.Add(); });
    const auto call = ClientOf(task->card)
                          ->Borrow(
                              key, kToken,
                              [&](absl::StatusOr<ChunkLoan> loan) {
                                if (loan.ok()) result = *std::move(loan);
                                answered.Add();
                              },
                              [&answered] { answered.Add(); });
    const bool came = answered.WaitFor(1);
    task->Abort(step);
    if (!came || !posted.WaitFor(1)) Exit(1);
    task->manager.Cleanup(step);
  }
  if (result.data() == nullptr || !result.intact() ||
      std::count(result.data(), result.data() + bytes, byte) !=
          static_cast<int64_t>(bytes)) {
    Wrong("a loan does not come, or is wrong");
    Exit(1);
  }
  return result;
}

// A consumer that still reads when its channel is lost knows that the producer
// has used the memory since.
void LoanOutlivesItsChannel(TestTask* task) {
  const ChunkLoan loan = BorrowPosted(task, kBlockBytes, 'a');
  LoseChannel();
  while (Metrics::Get()->lent_chunks.load() != 0) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  if (!loan.intact() || *loan.data() != 'a') {
    Wrong("a loan whose memory nobody else needed is not intact");
  }
  const ChunkLoan next = BorrowPosted(task, kBlockBytes, 'b');
  if (*loan.data() != 'b') Wrong("lost memory is not used again");
  if (loan.intact()) Wrong("a loan is intact whose memory was used again");
}

int Main(double seconds, uint64_t seed) {
  setenv("TF_FUSE_COLLECTIVE_PATHS", "shm,tcp,grpc", 1);
  TestTask task(kToken);
  if (task.card.unix_socket().empty()) {
    std::fprintf(stderr, "no data channel could be made\n");
    return 1;
  }
  if (!TestSource() || !TestSilentNameService(task.card) ||
      !TestLateGreeting(task.card)) {
    return 1;
  }
  LoanOutlivesItsChannel(&task);
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  std::atomic<int64_t> steps{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(seed * kThreads + i);
      while (absl::Now() < end && !wrong) {
        RunStep(&task, steps.fetch_add(1), &random);
      }
    });
  }
  OddHandler handler;
  CallHandler::Register(kCallToken, &handler);
  std::atomic<int64_t> calls{0};
  for (int i = 0; i < kCallers; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(seed * kCallers + i);
      while (absl::Now() < end && !wrong) {
        const std::string why =
            MakeCall(ClientOf(task.card).get(), kCallToken, &random);
        if (!why.empty()) Wrong(why);
        calls.fetch_add(1);
      }
    });
  }
  std::thread losing([&] {
    std::mt19937_64 random(seed);
    while (absl::Now() < end && !wrong) {
      absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(random() % 40)));
      LoseChannel();
    }
  });
  for (std::thread& thread : threads) thread.join();
  losing.join();
  CallHandler::Unregister(kCallToken);
  // Whatever became of the attempts to connect, the channel can be made again.
  BorrowPosted(&task, 100, 'c').GiveBack();
  Metrics* const metrics = Metrics::Get();
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  while (metrics->lent_chunks.load() != 0 && absl::Now() < limit) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  const bool clean = !wrong && posts.load() == 0 &&
                     answers.load() == steps.load() * kChunks &&
                     metrics->lent_chunks.load() == 0;
  std::printf(
      "%lld steps, %lld calls, %lld answers, %lld lost loans, %lld posts and "
      "%lld loans left, %s\n",
      static_cast<long long>(steps.load()),
      static_cast<long long>(calls.load()),
      static_cast<long long>(answers.load()),
      static_cast<long long>(lost_loans.load()),
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
