// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tests how a client connects, where nobody answers or somebody answers late.
// Part of channels_test; each test says why it fails.

#ifndef TF_FUSE_CC_TESTING_CHANNELS_CONNECT_CASES_H_
#define TF_FUSE_CC_TESTING_CHANNELS_CONNECT_CASES_H_

#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "channel/chunk_client.h"
#include "channel/peer_card.h"
#include "channel/socket/connection.h"
#include "channel/socket/descriptors.h"
#include "channel/socket/sockets.h"
#include "testing/program_main.h"

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

}  // namespace

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

#endif  // TF_FUSE_CC_TESTING_CHANNELS_CONNECT_CASES_H_
