// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/chunk_server.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "channel/consumer_connection.h"
#include "channel/peer_card.h"
#include "channel/socket/connection.h"
#include "channel/socket/descriptors.h"
#include "channel/socket/event_loop.h"
#include "channel/socket/sockets.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

namespace {

// Connections that may wait for their greeting. Members greet at once; whoever
// else reaches the socket must not use up the descriptors of the process.
constexpr size_t kMaxStrangers = 128;

// Connections that wait to be accepted. Used by the loop's thread only.
class Listener : public EventLoop::Handler {
 public:
  Listener(int fd, const Tokens& tokens)
      : fd_(fd), tokens_(tokens), spare_(SpareDescriptor()) {}

  void OnReadable() override {
    while (true) {
      const int fd = AcceptFrom(fd_);
      if (fd >= 0) {
        Add(fd);
      } else if (!IsOutOfDescriptors() || !RefuseOne()) {
        return;
      }
    }
  }
  void OnWritable() override {}

 private:
  void Add(int fd) {
    auto is_known = [](const std::weak_ptr<ConsumerConnection>& stranger) {
      const std::shared_ptr<ConsumerConnection> serving = stranger.lock();
      return serving == nullptr || !serving->IsStranger();
    };
    strangers_.erase(
        std::remove_if(strangers_.begin(), strangers_.end(), is_known),
        strangers_.end());
    if (strangers_.size() >= kMaxStrangers) {
      const std::shared_ptr<ConsumerConnection> oldest =
          strangers_.front().lock();
      strangers_.pop_front();
      if (oldest != nullptr) {
        oldest->HangUp(absl::ResourceExhaustedError(absl::StrCat(
            "data channel: ", kMaxStrangers, " connections did not greet")));
      }
    }
    const std::shared_ptr<ConsumerConnection> serving =
        ConsumerConnection::Begin(Connection::Create(fd), tokens_);
    if (serving != nullptr) strangers_.push_back(serving);
  }

  // Closes a waiting connection when the process has no free descriptor. A
  // connection that nobody accepts wakes the loop again and again.
  bool RefuseOne() {
    LOG_EVERY_N_SEC(WARNING, 60)
        << "tf_fuse: this process has no descriptor left for a data channel: a "
           "peer is refused, and its chunks go by gRPC. Raise the limit "
           "(ulimit -n).";
    if (spare_ < 0) spare_ = SpareDescriptor();
    if (spare_ < 0) return false;
    CloseDescriptor(spare_);
    const int fd = AcceptFrom(fd_);
    if (fd >= 0) CloseDescriptor(fd);
    spare_ = SpareDescriptor();
    return fd >= 0;
  }

  const int fd_;
  const Tokens tokens_;
  int spare_;
  std::deque<std::weak_ptr<ConsumerConnection>> strangers_;
};

// Listens until the process ends. Returns the address, or nothing.
std::string Listen(std::string address, const Tokens& tokens) {
  const absl::StatusOr<std::vector<int>> fds = ListenAt(&address);
  absl::Status status = fds.status();
  for (int fd : fds.value_or(std::vector<int>())) {
    if (status.ok()) {
      status =
          EventLoop::For(fd)->Add(fd, std::make_shared<Listener>(fd, tokens));
    }
    if (!status.ok()) CloseDescriptor(fd);
  }
  if (status.ok()) return address;
  LOG(WARNING) << "tf_fuse: " << status;
  return "";
}

}  // namespace

void FillInDataPaths(const std::string& host, v1::PeerCard* card) {
  static absl::Mutex mu(absl::kConstInit);
  static v1::PeerCard* const known = new v1::PeerCard;
  absl::MutexLock lock(&mu);
  if (known->server_token().empty()) {
    known->set_host_id(HostId());
    known->set_client_token(RandomToken());
    known->set_server_token(RandomToken());
    const Tokens tokens{known->client_token(), known->server_token()};
    const uint64_t number = RandomNumber();
    if (tokens.client.empty() || tokens.server.empty() || number == 0) {
      LOG(WARNING) << "tf_fuse: the system has no random numbers, so there are "
                      "no data channels";
      return;
    }
    if (AllowedPaths().shared_memory && !known->host_id().empty()) {
      const std::string name =
          absl::StrCat("tf_fuse.", getpid(), ".", absl::Hex(number));
      if (!Listen(absl::StrCat("unix:", name), tokens).empty()) {
        known->set_unix_socket(name);
      }
    }
    if (AllowedPaths().tcp && !host.empty()) {
      known->set_tcp_address(Listen(absl::StrCat(host, ":0"), tokens));
    }
  }
  card->MergeFrom(*known);
}

}  // namespace tf_fuse
