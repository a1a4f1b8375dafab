// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/chunk_server.h"

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "collectives/connection.h"
#include "collectives/event_loop.h"
#include "collectives/peer_card.h"
#include "collectives/serving.h"
#include "collectives/sockets.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

namespace {

// Connections that wait to be accepted.
class Listener : public EventLoop::Handler {
 public:
  Listener(int fd, const Tokens& tokens) : fd_(fd), tokens_(tokens) {}

  void OnReadable() override {
    for (int fd = AcceptFrom(fd_); fd >= 0; fd = AcceptFrom(fd_)) {
      Serving::Begin(Connection::Create(fd), tokens_);
    }
  }
  void OnWritable() override {}

 private:
  const int fd_;
  const Tokens tokens_;
};

// Listens until the process ends. Returns the address, or nothing.
std::string Listen(std::string address, const Tokens& tokens) {
  absl::StatusOr<int> fd = ListenAt(&address);
  absl::Status status = fd.status();
  if (status.ok()) {
    status =
        EventLoop::Get()->Add(*fd, std::make_shared<Listener>(*fd, tokens));
    if (!status.ok()) CloseSocket(*fd);
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
