// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
//   channel_fuzz SECONDS SEED
//
// Members of a group that lie: data channels whose other side knows the tokens
// and then sends what it likes. Once as the producer, which answers requests of
// this process with parts that are too long, come twice, or name memory that is
// not there; once as the consumer, which asks, cancels and gives back at
// random. Each request must be answered once, memory may not be written after
// that, and at the end nothing is left. Made for AddressSanitizer.

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/metrics.h"
#include "channel/chunk_client.h"
#include "channel/chunk_server.h"
#include "channel/peer_card.h"
#include "channel/socket/descriptors.h"
#include "channel/socket/sockets.h"
#include "testing/channels/call_cases.h"
#include "testing/channels/channel_task.h"
#include "testing/channels/lying_peer.h"
#include "testing/program_main.h"

namespace tf_fuse {
namespace testing {
namespace {

constexpr uint64_t kToken = 99;
constexpr uint64_t kCallToken = 98;

std::atomic<int64_t> asked{0};
std::atomic<int64_t> answered{0};
std::atomic<bool> wrong{false};

// Asks the liar, and destroys the memory as soon as it is answered.
class Victim {
 public:
  Victim(const std::shared_ptr<ChunkClient>& client, Random* random)
      : bytes_(Below(random, 4) == 0 ? Below(random, kMaxBytes)
                                     : Below(random, 70'000)),
        cancels_(Below(random, 8) == 0) {
    asked.fetch_add(1);
    ChunkKey key;
    key.key = "k";
    key.device = "d";
    key.bytes = bytes_;
    auto no_way = [this] { Answer(); };
    if (Below(random, 2) == 0) {
      memory_ = std::make_unique<char[]>(bytes_ + 1);
      call_ = client->Take(
          key, kToken, memory_.get(), [this](const absl::Status&) { Answer(); },
          no_way);
    } else {
      call_ = client->Borrow(
          key, kToken,
          [this](absl::StatusOr<ChunkLoan> loan) {
            uint64_t sum = 0;
            if (loan.ok() && loan->data() != nullptr) {
              for (uint64_t i = 0; i < bytes_; ++i) sum += loan->data()[i];
            }
            sum_ = sum;
            Answer();
          },
          no_way);
    }
  }

  void MaybeCancel() {
    if (cancels_) call_->Cancel(absl::CancelledError("by the test"));
  }

  // False if it is never answered.
  bool Wait() {
    return answered_.WaitForNotificationWithTimeout(absl::Seconds(60));
  }

 private:
  void Answer() {
    if (answered_.HasBeenNotified()) {
      std::fprintf(stderr, "a request was answered twice\n");
      wrong = true;
      return;
    }
    memory_.reset();  // Who writes it now is found out.
    answered.fetch_add(1);
    answered_.Notify();
  }

  const uint64_t bytes_;
  const bool cancels_;
  std::atomic<uint64_t> sum_{0};
  std::unique_ptr<char[]> memory_;
  std::shared_ptr<ChunkCall> call_;
  absl::Notification answered_;
};

// What a consumer that lies may take.
class Posted {
 public:
  Posted(TestTask* task, int64_t step, const std::string& key, uint64_t bytes)
      : tensor_(tensorflow::DT_UINT8,
                tensorflow::TensorShape({static_cast<int64_t>(bytes)})) {
    std::memset(tensor_.data(), 'z', bytes);
    task->Post(step, key, &tensor_,
               [this](const absl::Status&) { taken_.Notify(); });
  }
  void Wait() { taken_.WaitForNotification(); }

 private:
  tensorflow::Tensor tensor_;
  absl::Notification taken_;
};

int CountDescriptors() {
  const auto folder = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<int>(std::distance(std::filesystem::begin(folder),
                                        std::filesystem::end(folder)));
}

v1::PeerCard LyingCard(uint64_t number, const std::string& address) {
  v1::PeerCard card;
  card.set_version(kChannelVersion);
  card.set_host_id(HostId());
  card.set_unix_socket(address);
  card.set_client_token(absl::StrCat("client ", number));
  card.set_server_token(absl::StrCat("server ", number));
  return card;
}

// A call to a liar.
class CallVictim {
 public:
  CallVictim(const std::shared_ptr<ChunkClient>& client, Random* random)
      : calls_(client->Calls()) {
    if (calls_ == nullptr) return;
    asked.fetch_add(1);
    call_ = calls_->Start(
        (*random)(), v1::CALL_METHOD_RECV_TENSOR,
        std::string(Below(random, 300), 'q'), kMaxAnswer,
        [state = state_](const absl::Status& status,
                         const tensorflow::Tensor& answer) {
          if (state->HasBeenNotified() ||
              (status.ok() && answer.TotalBytes() > kMaxAnswer)) {
            std::fprintf(stderr, "a call was answered twice, or too long\n");
            wrong = true;
            return;
          }
          answered.fetch_add(1);
          state->Notify();
        });
    if (call_ == 0) asked.fetch_sub(1);
    cancels_ = Below(random, 2) == 0;
  }
  // Ends it at last: who lies may never answer.
  bool End() {
    if (call_ == 0) return true;
    if (!cancels_)
      state_->WaitForNotificationWithTimeout(absl::Milliseconds(10));
    calls_->Cancel(call_);
    return state_->WaitForNotificationWithTimeout(absl::Seconds(60));
  }

 private:
  const std::shared_ptr<CallClient> calls_;
  const std::shared_ptr<absl::Notification> state_ =
      std::make_shared<absl::Notification>();
  uint64_t call_ = 0;
  bool cancels_ = false;
};

// One connection to a producer that lies.
void LieAsProducer(uint64_t number, uint64_t seed) {
  Random random(seed);
  const std::string name = absl::StrCat("tf_fuse_lies.", getpid(), ".", number);
  std::string address = absl::StrCat("unix:", name);
  const absl::StatusOr<std::vector<int>> listeners = ListenAt(&address);
  if (!listeners.ok()) {
    std::fprintf(stderr, "%s\n", listeners.status().ToString().c_str());
    std::exit(1);
  }
  const int listener = listeners->front();
  fcntl(listener, F_SETFL, 0);
  const v1::PeerCard card = LyingCard(number, name);
  const uint64_t seed_of_liar = random();
  std::thread lying([&card, listener, seed_of_liar] {
    Random random(seed_of_liar);
    Liar liar(accept(listener, nullptr, nullptr));
    CloseDescriptor(listener);
    v1::ChannelMessage message;
    if (!liar.Read(&message)) return;
    if (Below(&random, 16) != 0) {
      message.mutable_hello()->set_token(card.server_token());
      if (!liar.Send(message, 0)) return;
    }
    for (uint64_t i = 1 + Below(&random, 40); i > 0; --i) {
      if (!liar.Read(&message)) return;
      if (message.has_call_request()) {
        if (!LieToCaller(&liar, &random, message.call_request())) return;
      }
      if (!message.has_request()) continue;
      const v1::ChunkRequest request = message.request();
      for (uint64_t lies = Below(&random, 4); lies > 0; --lies) {
        if (!Lie(&liar, &random, request)) return;
      }
    }
  });
  {
    // (Not by To(): that remembers all cards.)
    auto client = std::make_shared<ChunkClient>(card);
    std::vector<std::unique_ptr<Victim>> victims;
    for (uint64_t i = 1 + Below(&random, 12); i > 0; --i) {
      victims.push_back(std::make_unique<Victim>(client, &random));
    }
    std::vector<std::unique_ptr<CallVictim>> callers;
    for (int i = 0; i < 50 && client->Calls() == nullptr; ++i) {
      absl::SleepFor(absl::Milliseconds(1));  // It may never greet.
    }
    for (uint64_t i = Below(&random, 6); i > 0; --i) {
      callers.push_back(std::make_unique<CallVictim>(client, &random));
    }
    for (auto& caller : callers) {
      if (caller->End()) continue;
      std::fprintf(stderr, "a call is not answered, seed %llu\n",
                   static_cast<unsigned long long>(seed));
      _exit(1);
    }
    for (auto& victim : victims) victim->MaybeCancel();
    for (auto& victim : victims) {
      if (victim->Wait()) continue;
      std::fprintf(stderr, "a request is not answered, seed %llu\n",
                   static_cast<unsigned long long>(seed));
      _exit(1);
    }
  }
  lying.join();
}

// One connection of a consumer that lies.
void LieAsConsumer(TestTask* task, uint64_t number, uint64_t seed) {
  Random random(seed);
  absl::StatusOr<int> fd =
      ConnectTo(absl::StrCat("unix:", task->card.unix_socket()),
                absl::Now() + absl::Seconds(5));
  if (!fd.ok()) return;
  auto liar = std::make_unique<Liar>(*fd);
  v1::ChannelMessage hello;
  hello.mutable_hello()->set_version(kChannelVersion);
  hello.mutable_hello()->set_token(task->card.client_token());
  hello.mutable_hello()->set_shared_memory(Below(&random, 2) == 0);
  if (!liar->Send(hello, 0)) return;
  const int64_t step = static_cast<int64_t>(number);
  const uint64_t bytes = 1 + Below(&random, kMaxBytes);
  Posted posted(task, step, "k", bytes);
  for (uint64_t i = 1 + Below(&random, 60); i > 0; --i) {
    v1::ChannelMessage message;
    uint64_t claimed = Below(&random, 64) == 0 ? 5 : 0;
    std::string behind;
    switch (Below(&random, 8)) {
      case 6: {
        constexpr char kKinds[] = {kAnswered, kElsewhere, kRefused,
                                   kNeverAnswered};
        v1::CallRequest* const request = message.mutable_call_request();
        request->set_call(Below(&random, 32) == 0 ? Below(&random, i + 1) : i);
        request->set_server(Below(&random, 16) == 0 ? 1 : kCallToken);
        request->set_method(static_cast<v1::CallMethod>(Below(&random, 1000)));
        behind.assign(Below(&random, 200), kKinds[Below(&random, 4)]);
        claimed = Below(&random, 64) == 0 ? OddNumber(&random, 2 << 20)
                                          : behind.size();
        break;
      }
      case 7:
        message.mutable_cancel()->set_call(Below(&random, 60));
        message.mutable_cancel()->set_is_call(true);
        break;
      case 0:
        for (uint64_t n = Below(&random, 10); n > 0; --n) {
          message.mutable_release()->add_leases(Below(&random, 20));
        }
        break;
      case 1:
        message.mutable_cancel()->set_call(Below(&random, 60));
        break;
      case 2:
        message = hello;
        break;
      case 3:
        if (Below(&random, 16) != 0) continue;
        message = OddAnswer(&random, 1, bytes);
        break;
      default: {
        v1::ChunkRequest* const request = message.mutable_request();
        request->set_call(Below(&random, 32) == 0 ? Below(&random, i + 1) : i);
        request->set_task_token(Below(&random, 16) == 0 ? 1 : kToken);
        request->set_step_id(step);
        request->set_key(Below(&random, 4) == 0 ? "none" : "k");
        request->set_device(task->devices.HostCPU()->name());
        request->set_device_incarnation(kIncarnation);
        request->set_bytes(Below(&random, 4) == 0 ? OddNumber(&random, bytes)
                                                  : bytes);
      }
    }
    const int extra =
        Below(&random, 64) == 0 ? open("/dev/null", O_RDONLY) : -1;
    const bool sent =
        liar->Send(message, claimed, behind, extra, 1 + Below(&random, 2));
    if (extra >= 0) close(extra);
    if (!sent) break;
    if (Below(&random, 2) == 0) liar->Drain();
  }
  if (Below(&random, 2) == 0) liar->CloseForWriting();
  task->Abort(step);
  // What it does not give back is held until it has gone.
  liar.reset();
  posted.Wait();
  task->manager.Cleanup(step);
}

bool ComesToRest(int descriptors) {
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  while (Metrics::Get()->lent_chunks.load() != 0 ||
         CountDescriptors() > descriptors) {
    if (absl::Now() > limit) {
      std::fprintf(stderr, "%lld loans and %d descriptors are left, of %d\n",
                   static_cast<long long>(Metrics::Get()->lent_chunks.load()),
                   CountDescriptors(), descriptors);
      return false;
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

int Main(double seconds, uint64_t seed) {
  TestTask task(kToken);
  if (task.card.unix_socket().empty()) {
    std::fprintf(stderr, "no data channel could be made\n");
    return 1;
  }
  static OddHandler handler;
  CallHandler::Register(kCallToken, &handler);
  LieAsProducer(0, seed);  // What is made once is there.
  LieAsConsumer(&task, 0, seed);
  // Segments, which stay: at most so many.
  constexpr int kKept = 64;
  const int descriptors = CountDescriptors() + kKept;
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  std::atomic<uint64_t> rounds{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      while (absl::Now() < end && !wrong) {
        const uint64_t number = ++rounds;
        if (i % 2 == 0) {
          LieAsProducer(number, seed * 1'000'003 + number);
        } else {
          LieAsConsumer(&task, number, seed * 1'000'003 + number);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const bool clean =
      ComesToRest(descriptors) && !wrong && asked.load() == answered.load();
  std::printf("%llu connections, %lld requests, %lld answers, seed %llu, %s\n",
              static_cast<unsigned long long>(rounds.load()),
              static_cast<long long>(asked.load()),
              static_cast<long long>(answered.load()),
              static_cast<unsigned long long>(seed),
              clean ? "clean" : "FAILED");
  return clean ? 0 : 1;
}

}  // namespace
}  // namespace testing
}  // namespace tf_fuse

int main(int argc, char** argv) {
  return tf_fuse::testing::RunForSeconds(argc, argv, &tf_fuse::testing::Main);
}
