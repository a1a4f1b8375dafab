// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tests what waits at a task whose collectives begin anew, and other things
// that need no channel. Part of channels_test; each test says why it fails.

#ifndef TF_FUSE_CC_TESTING_CHANNELS_CHANNEL_FREE_CASES_H_
#define TF_FUSE_CC_TESTING_CHANNELS_CHANNEL_FREE_CASES_H_

#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/borrowed_tensor.h"
#include "channel/chunk_client.h"
#include "channel/peer_card.h"
#include "channel/socket/connection.h"
#include "channel/socket/descriptors.h"
#include "channel/socket/sockets.h"
#include "collectives/remote_access/awaited_members.h"
#include "collectives/remote_access/calls_under_way.h"
#include "collectives/remote_access/remote_access.h"
#include "collectives/remote_access/step_chunks.h"
#include "collectives/runtime/group_resolver.h"
#include "testing/channels/channel_task.h"

namespace {

constexpr char kSilentHost[] = "silent.example";

std::atomic<int> look_ups{0};  // Of that host.

absl::Notification* NameServiceAnswers() {
  static auto* const answers = new absl::Notification;
  return answers;
}

}  // namespace

// In place of the C library's: the name service says nothing of one host.
extern "C" int getaddrinfo(const char* host, const char* port,
                           const addrinfo* hints, addrinfo** found) {
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host != nullptr && std::strcmp(host, kSilentHost) == 0) {
    if (hints->ai_flags & AI_NUMERICHOST) return EAI_NONAME;
    look_ups.fetch_add(1);
    NameServiceAnswers()->WaitForNotification();
    return EAI_AGAIN;
  }
  return real(host, port, hints, found);
}

namespace tf_fuse {
namespace testing {

namespace {

using tensorflow::Tensor;

constexpr int64_t kStep = 3;
constexpr uint64_t kBytes = 8;

bool Fails(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  return false;
}

// Its requests pass from thread to thread in a way that ThreadSanitizer sees.
class SeenRemoteAccess : public FuseRemoteAccess {
 public:
  SeenRemoteAccess(const tensorflow::DeviceMgr* devices,
                   std::shared_ptr<UnderWay> under_way)
      : FuseRemoteAccess(devices, /*resolver=*/nullptr, /*queue=*/nullptr,
                         /*workers=*/nullptr, kStep,
                         "/job:worker/replica:0/task:0", std::move(under_way)),
        rendezvous_(kStep, devices) {}
  SeenRendezvous* buf_rendezvous() override { return &rendezvous_; }
  void StartAbort(const absl::Status& status) override {
    FuseRemoteAccess::StartAbort(status);
    std::lock_guard<std::recursive_mutex> lock(rendezvous_.mu);
    rendezvous_.StartAbort(status);
  }

 private:
  SeenRendezvous rendezvous_;
};

// An executor with our remote access, and nothing else.
class FuseExecutor : public tensorflow::CollectiveExecutor {
 public:
  FuseExecutor(const tensorflow::DeviceMgr* devices,
               std::shared_ptr<UnderWay> under_way)
      : CollectiveExecutor(nullptr), access_(devices, std::move(under_way)) {}
  void RunClosure(std::function<void()> closure) override { closure(); }
  SeenRemoteAccess* remote_access() override { return &access_; }

 private:
  SeenRemoteAccess access_;
};

// Reports its steps, so nobody else may look one up in it.
class ReportingManager : public Manager {
 public:
  using Manager::Manager;
  tensorflow::CollectiveExecutor* FindOrCreate(int64_t step) override {
    looked_up = true;
    return Manager::FindOrCreate(step);
  }
  bool looked_up = false;
};

struct Request {
  Request(const std::shared_ptr<ChunkSource>& source,
          const tensorflow::Device& device, const std::string& key) {
    ChunkKey chunk;
    chunk.step_id = kStep;
    chunk.key = key;
    chunk.device = device.name();
    chunk.device_incarnation = kIncarnation;
    chunk.bytes = kBytes;
    source->Take(chunk, &cancellation,
                 [this](absl::StatusOr<PostedChunk> posted) {
                   status = posted.status();
                   if (posted.ok()) posted->done();
                   answered.Add();
                 });
  }

  tensorflow::CancellationManager cancellation;
  absl::Status status;
  Ended answered;
};

bool WhatWaitsMovesOrEnds() {
  tensorflow::StaticDeviceMgr devices(
      std::make_unique<HostCpu>("/job:worker/replica:0/task:0", kIncarnation));
  tensorflow::Device* const device = devices.HostCPU();
  ReportingManager before(&devices);
  ReportingManager after(&devices);
  const auto under_way = std::make_shared<UnderWay>();
  const auto source = std::make_shared<StepChunks>();
  tensorflow::core::RefCountPtr<FuseExecutor> old_step(
      new FuseExecutor(&devices, under_way));
  source->Attach(&before);
  Request early(source, *device, "9:9:0:0:early");
  source->StepBegan(&before, kStep, old_step.get());
  Request of_begun(source, *device, "1:2:0:0:a");
  Request of_next(source, *device, "1:22:0:0:a");
  const auto call = under_way->Begin({kStep, 1, "1:2:"});
  under_way->Begin({kStep, 1, "1:22:"});  // Ends at once.
  const absl::Status why = absl::AbortedError("anew");
  source->Attach(&after);
  // At the manager that is in place the step does not run.
  Request between(source, *device, "1:33:0:0:a");
  under_way->Retire(why);
  old_step->remote_access()->StartAbort(why);
  if (!of_begun.answered.WaitFor(1) || of_begun.status != why) {
    return Fails(absl::StrCat("a request of a call that was under way: ",
                              of_begun.status.ToString()));
  }
  if (under_way->AwaitEnd(absl::InfinitePast()) != 1) {
    return Fails("one call is under way");
  }
  tensorflow::core::RefCountPtr<FuseExecutor> new_step(
      new FuseExecutor(&devices, std::make_shared<UnderWay>()));
  source->StepBegan(&after, kStep, new_step.get());
  char bytes[kBytes] = {};
  const Tensor tensor = BorrowedTensor(bytes, kBytes);
  Ended taken;
  const std::vector<std::pair<Request*, std::string>> moved = {
      {&early, "9:9:0:0:early"},
      {&of_next, "1:22:0:0:a"},
      {&between, "1:33:0:0:a"}};
  for (const auto& [request, key] : moved) {
    SeenRendezvous* const rendezvous =
        new_step->remote_access()->buf_rendezvous();
    std::lock_guard<std::recursive_mutex> lock(rendezvous->mu);
    rendezvous->ProvideBuf(
        key, device, nullptr, &tensor, tensorflow::AllocatorAttributes(),
        [&taken](const absl::Status&) { taken.Add(); }, nullptr);
  }
  for (const auto& [request, key] : moved) {
    if (!request->answered.WaitFor(1) || !request->status.ok()) {
      return Fails(absl::StrCat("a request that was to move, ", key, ": ",
                                request->status.ToString()));
    }
  }
  if (!taken.WaitFor(moved.size())) return Fails("a chunk is not taken");
  if (before.looked_up || after.looked_up) {
    return Fails("a request looked an executor up, and may have made one");
  }
  source->End(&after);
  return true;
}

bool JoinsAreOfWhoWaits() {
  tensorflow::DeviceAttributes device;
  device.set_name("/job:worker/replica:0/task:1/device:CPU:0");
  device.set_incarnation(1);
  const auto join = [&device](int32_t key) {
    Joins::Join one = {device, {}, {}};
    one.group.group_key = key;
    return one;
  };
  Joins joins;
  // This task comes to group 1 while the device does.
  const uint64_t meetings = joins.Come(device, 1);
  joins.Meet(1);
  joins.Add(join(1), meetings);
  if (!joins.All().empty()) return Fails("a join of a group that was met");
  joins.Add(join(1), joins.Come(device, 1));
  joins.Add(join(2), joins.Come(device, 2));
  device.set_incarnation(2);
  joins.Add(join(3), joins.Come(device, 3));
  std::vector<Joins::Join> all = joins.All();
  if (all.size() != 1 || all[0].group.group_key != 3 ||
      all[0].device.incarnation() != 2) {
    return Fails("joins of a device that is gone");
  }
  tensorflow::CompleteInstanceRequest request;
  request.set_device(device.name());
  for (const int group : {1, 3}) {
    request.set_group_key(group);
    joins.AddBroadcast(request);
  }
  all = joins.All();
  if (all.size() != 1 || all[0].broadcasts.size() != 1) {
    return Fails("broadcasts of a device that waits");
  }
  return true;
}

bool ErrorsWaitForTheNextUse() {
  tensorflow::DeviceAttributes device;
  device.set_name("/job:worker/replica:0/task:1/device:CPU:0");
  Joins joins;
  const auto keep = [&](int group, bool is_current, int* ended) {
    tensorflow::CompleteInstanceRequest request;
    request.set_device(device.name());
    request.set_group_key(group);
    return joins.KeepError(
        request, [is_current] { return is_current; }, [ended] { ++*ended; });
  };
  int ended = 0;
  if (keep(1, true, &ended)) return Fails("an error of who has not joined");
  for (const int group : {1, 2}) {
    Joins::Join one = {device, {}, {}};
    one.group.group_key = group;
    joins.Add(std::move(one), joins.Come(device, group));
  }
  if (keep(1, false, &ended)) return Fails("an error after a new beginning");
  if (!keep(1, true, &ended) || !keep(2, true, &ended) || ended != 0) {
    return Fails("an error of who has joined");
  }
  joins.Meet(1);
  if (ended != 1) return Fails("an error of a group that was met");
  joins.GoOn();
  if (ended != 2) return Fails("an error at a new beginning");
  return true;
}

// What a task answers that is asked whom `device` waits for.
std::set<int> Answer(const std::string& device) {
  ChunkKey question;
  question.key = WaitsKey("1:2:0:0", /*who=*/0, /*number=*/0);
  question.device = device;
  question.bytes = kWaitsBytes;
  std::set<int> members;
  AnswerWaits(question, [&members](absl::StatusOr<PostedChunk> posted) {
    members = WaitsIn(posted->data);
    posted->done();
  });
  return members;
}

bool StagesAnswerTogether() {
  const auto first =
      RegisterWaits("1:2:0:0", "a", [] { return std::set<int>{1}; });
  auto second = RegisterWaits(absl::StrCat("1:2:0:0", kSumsStage), "a",
                              [] { return std::set<int>{2}; });
  if (Answer("a") != std::set<int>{1, 2}) return Fails("two stages");
  second = nullptr;
  if (Answer("a") != std::set<int>{1}) return Fails("the end of a stage");
  return true;
}

}  // namespace

inline bool TestSource() {
  return WhatWaitsMovesOrEnds() && JoinsAreOfWhoWaits() &&
         ErrorsWaitForTheNextUse() && StagesAnswerTogether();
}

// Counts what comes on a connection.
class Watcher : public Connection::Receiver {
 public:
  absl::StatusOr<char*> DestinationOf(const v1::ChannelMessage& message,
                                      uint64_t bytes) override {
    return nullptr;
  }
  absl::Status OnMessage(const v1::ChannelMessage& message, uint64_t bytes,
                         int fd) override {
    if (message.has_request()) requested.Add();
    return absl::OkStatus();
  }
  void OnClosed(const absl::Status& status) override {
    closed.Add();
    if (go_on != nullptr) go_on->WaitForNotification();
  }

  Ended requested;
  Ended closed;
  absl::Notification* go_on = nullptr;  // Holds the loop's thread at the end.
};

// Returns when the loop has begun to end a connection that was made for it.
bool LoopEndsOne(const std::shared_ptr<Watcher>& watcher) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return false;
  }
  const bool started = Connection::Create(pair[0])->Start(watcher).ok();
  close(pair[1]);
  return started && watcher->closed.WaitFor(1);
}

bool WaitUntilReadable(int fd) {
  constexpr int kMilliseconds = 60000;
  pollfd polled = {fd, POLLIN, 0};
  return poll(&polled, 1, kMilliseconds) == 1;
}

// Reads up to the end.
bool IsGivenUp(int fd) {
  char bytes[256];
  while (WaitUntilReadable(fd)) {
    const ssize_t count = read(fd, bytes, sizeof(bytes));
    if (count <= 0) return count == 0;
  }
  return false;
}

// The end of a connection that was given up comes while the client tries the
// next address; requests go on to wait for that.
inline bool TestLateGreeting(const v1::PeerCard& of_task) {
  constexpr uint64_t kChannel = 5;
  const std::string name = absl::StrCat("tf_fuse test ", RandomNumber());
  std::string by_unix = absl::StrCat("unix:", name);
  std::string by_tcp = "127.0.0.1:0";
  const auto unix_listeners = ListenAt(&by_unix);
  const auto tcp_listeners = ListenAt(&by_tcp);
  if (!unix_listeners.ok() || !tcp_listeners.ok()) {
    return Fails("no listener could be made");
  }
  const int silent = unix_listeners->front();
  const int polite = tcp_listeners->front();
  v1::PeerCard card = of_task;
  card.set_unix_socket(name);
  card.set_tcp_address(by_tcp);

  absl::Notification go_on;
  const auto holder = std::make_shared<Watcher>();
  holder->go_on = &go_on;
  if (!LoopEndsOne(holder)) return Fails("the loop does not run");
  // They outlive the test if it fails.
  const auto no_way = std::make_shared<std::atomic<int>>(0);
  const auto answered = std::make_shared<Ended>();
  static char to;
  ChunkKey key;
  key.bytes = sizeof(to);
  const auto client = std::make_shared<ChunkClient>(card);
  const auto call = client->Take(
      key, /*task_token=*/99, &to,
      [answered](const absl::Status&) { answered->Add(); },
      [no_way] { no_way->fetch_add(1); });
  int first = -1;
  int second = -1;
  if (WaitUntilReadable(silent)) first = AcceptFrom(silent);
  const bool given_up = IsGivenUp(first);
  if (WaitUntilReadable(polite)) second = AcceptFrom(polite);
  go_on.Notify();
  if (!given_up || second < 0) return Fails("the next address is not tried");
  // The end of the first connection was there before that of this one.
  for (int i = 0; i < 2; ++i) {
    if (!LoopEndsOne(std::make_shared<Watcher>())) {
      return Fails("the loop does not go on");
    }
  }
  if (*no_way != 0) return Fails("a late end of another connection");

  const auto server = std::make_shared<Watcher>();
  const auto connection = Connection::Create(second);
  if (!connection->Start(server).ok()) return Fails("a server that greets");
  v1::ChannelMessage message;
  message.mutable_hello()->set_version(kChannelVersion);
  message.mutable_hello()->set_token(card.server_token());
  message.mutable_hello()->set_channel(kChannel);
  connection->Send(message);
  if (!server->requested.WaitFor(1)) return Fails("a request that waited");
  if (client->Channel() != kChannel) return Fails("the number of a channel");
  for (const int listener : {silent, polite}) {
    if (AcceptFrom(listener) >= 0 || errno != EAGAIN) {
      return Fails("a third connection");
    }
    CloseDescriptor(listener);
  }
  CloseDescriptor(first);
  connection->Close(absl::CancelledError("the test is over"));
  if (!answered->WaitFor(1)) return Fails("a request on a lost channel");
  return true;
}

// The request takes another way; the look-up may take for ever.
inline bool TestSilentNameService(const v1::PeerCard& of_task) {
  v1::PeerCard card = of_task;
  card.clear_unix_socket();
  card.set_tcp_address(absl::StrCat(kSilentHost, ":1"));
  card.set_server_token("of a host that is not found");
  Ended no_way;
  ChunkKey key;
  key.bytes = 1;
  char to = 0;
  const auto client = std::make_shared<ChunkClient>(card);
  const auto call = client->Take(
      key, /*task_token=*/99, &to,
      [](const absl::Status&) { Fails("an answer of a host not found"); },
      [&no_way] { no_way.Add(); });
  if (!no_way.WaitFor(1)) {
    Fails("a request waits for a name service that says nothing");
    Exit(1);  // It may still be answered.
  }
  // Later attempts wait for the same answer, and gather no threads.
  for (int i = 0; i < 3; ++i) {
    if (ConnectTo(absl::StrCat(kSilentHost, ":1"), absl::Now()).ok()) {
      return Fails("a connection to a host that is not found");
    }
  }
  if (look_ups != 1) {
    return Fails(absl::StrCat(look_ups.load(), " look-ups of a name"));
  }
  NameServiceAnswers()->Notify();
  return true;
}

}  // namespace testing
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TESTING_CHANNELS_CHANNEL_FREE_CASES_H_
