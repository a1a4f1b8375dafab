// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/chunk_client.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/fetch.h"
#include "collectives/peer_card.h"
#include "collectives/sockets.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/logging.h"
#include "transport/metrics.h"

namespace tf_fuse {

namespace {

// A peer's memory that is mapped here, all its segments together: addresses,
// of which a process has 128 times as many, and not memory.
constexpr uint64_t kMaxMappedBytes = uint64_t{1} << 40;
constexpr size_t kMaxSegments = 1 << 14;

std::string AddressOf(const v1::PeerCard& card) {
  static const std::string* const own_host = new std::string(HostId());
  const bool same_host = !own_host->empty() && card.host_id() == *own_host;
  if (AllowedPaths().shared_memory && same_host &&
      !card.unix_socket().empty()) {
    return absl::StrCat("unix:", card.unix_socket());
  }
  if (AllowedPaths().tcp && !card.tcp_address().empty()) {
    return card.tcp_address();
  }
  return "";
}

}  // namespace

// What comes on the connection to a server.
class ClientReceiver : public Connection::Receiver {
 public:
  ClientReceiver(std::shared_ptr<ChunkClient> client,
                 std::shared_ptr<Connection> connection)
      : client_(std::move(client)), connection_(std::move(connection)) {}

  absl::StatusOr<char*> DestinationOf(const v1::ChannelMessage& message,
                                      uint64_t bytes) override {
    if (!greeted_ || !message.has_answer()) {
      return absl::DataLossError("data channel: bytes behind no answer");
    }
    const std::shared_ptr<Fetch> fetch = client_->Find(message.answer().call());
    if (fetch == nullptr) return nullptr;  // Cancelled meanwhile.
    return fetch->DestinationOf(message.answer(), bytes);
  }

  absl::Status OnMessage(const v1::ChannelMessage& message, uint64_t bytes,
                         int fd) override {
    if (!greeted_ && !message.has_hello()) {
      if (fd >= 0) CloseSocket(fd);
      return absl::UnauthenticatedError(
          "data channel: the process that answers does not greet");
    }
    if (message.has_segment()) {
      return client_->AddSegment(message.segment(), fd);
    }
    if (fd >= 0) {
      CloseSocket(fd);
      return absl::DataLossError("data channel: a descriptor of nothing");
    }
    if (message.has_hello()) {
      if (message.hello().token() != client_->card_.server_token()) {
        return absl::UnauthenticatedError(
            "data channel: the process that answers is not the one that the "
            "group knows");
      }
      greeted_ = true;
      client_->Opened(connection_, message.hello().channel());
      return absl::OkStatus();
    }
    if (!message.has_answer()) {
      return absl::DataLossError("data channel: no answer");
    }
    const v1::ChunkAnswer& answer = message.answer();
    const std::shared_ptr<Fetch> fetch = client_->Find(answer.call());
    if (fetch != nullptr) return fetch->OnAnswer(answer, bytes);
    if (answer.lease() != 0) client_->GiveBack(answer.lease(), connection_);
    return absl::OkStatus();
  }

  void OnClosed(const absl::Status& status) override {
    client_->Closed(connection_.get(), status);
    connection_ = nullptr;
  }

 private:
  const std::shared_ptr<ChunkClient> client_;
  std::shared_ptr<Connection> connection_;
  bool greeted_ = false;  // It has shown the server's token.
};

std::shared_ptr<ChunkClient> ChunkClient::To(const v1::PeerCard& card) {
  if (AddressOf(card).empty()) return nullptr;
  static absl::Mutex mu(absl::kConstInit);
  static auto* const clients =
      new std::map<std::string, std::shared_ptr<ChunkClient>>;
  absl::MutexLock lock(&mu);
  std::shared_ptr<ChunkClient>& client = (*clients)[card.server_token()];
  if (client == nullptr) client = std::make_shared<ChunkClient>(card);
  return client;
}

std::shared_ptr<ChunkCall> ChunkClient::Take(const ChunkKey& key,
                                             uint64_t task_token,
                                             char* destination, ChunkDone done,
                                             std::function<void()> no_way) {
  return Start(std::make_shared<Fetch>(shared_from_this(), key, task_token,
                                       destination, std::move(done),
                                       std::move(no_way)));
}

std::shared_ptr<ChunkCall> ChunkClient::Borrow(const ChunkKey& key,
                                               uint64_t task_token,
                                               LoanDone done,
                                               std::function<void()> no_way) {
  return Start(std::make_shared<Fetch>(shared_from_this(), key, task_token,
                                       std::move(done), std::move(no_way)));
}

std::shared_ptr<ChunkCall> ChunkClient::Start(std::shared_ptr<Fetch> fetch) {
  std::shared_ptr<Connection> connection;
  bool connect = false;
  bool no_way = false;
  {
    absl::MutexLock lock(&mu_);
    fetch->set_call(++calls_);
    if (state_ == State::kUnreachable) {
      no_way = true;
    } else {
      fetches_[fetch->call()] = fetch;
      connection = connection_;
      connect = state_ == State::kNew;
      if (connect) state_ = State::kConnecting;
    }
  }
  if (no_way) {
    fetch->NoWay();
  } else if (connection != nullptr) {
    if (fetch->SentBy(connection)) connection->Send(fetch->Request());
  } else if (connect) {
    tensorflow::Env::Default()->SchedClosure(
        [self = shared_from_this()] { self->Connect(); });
  }
  return fetch;
}

void ChunkClient::Connect() {
  absl::StatusOr<int> fd = ConnectTo(AddressOf(card_));
  if (!fd.ok()) return NoWay(fd.status());
  const std::shared_ptr<Connection> connection = Connection::Create(*fd);
  // Another user may have taken the name of a process that has ended.
  if (connection->is_unix() && connection->PeerUser() != geteuid()) {
    return NoWay(absl::UnauthenticatedError(
        absl::StrCat("user ", connection->PeerUser(),
                     " answers, expected user ", geteuid())));
  }
  absl::Status status = connection->Start(
      std::make_shared<ClientReceiver>(shared_from_this(), connection));
  if (!status.ok()) return NoWay(status);
  v1::ChannelMessage message;
  message.mutable_hello()->set_version(kChannelVersion);
  message.mutable_hello()->set_token(card_.client_token());
  message.mutable_hello()->set_shared_memory(connection->is_unix());
  connection->Send(message);
}

uint64_t ChunkClient::Channel() {
  {
    absl::MutexLock lock(&mu_);
    if (state_ == State::kOpen) return channel_;
    if (state_ != State::kNew) return 0;
    state_ = State::kConnecting;
  }
  tensorflow::Env::Default()->SchedClosure(
      [self = shared_from_this()] { self->Connect(); });
  return 0;
}

void ChunkClient::Opened(std::shared_ptr<Connection> connection,
                         uint64_t channel) {
  std::vector<std::shared_ptr<Fetch>> waiting;
  {
    absl::MutexLock lock(&mu_);
    if (state_ != State::kConnecting) return;
    state_ = State::kOpen;
    connection_ = connection;
    channel_ = channel;
    for (const auto& [call, fetch] : fetches_) waiting.push_back(fetch);
  }
  Metrics::Get()->data_channels.fetch_add(1);
  for (const std::shared_ptr<Fetch>& fetch : waiting) {
    if (fetch->SentBy(connection)) connection->Send(fetch->Request());
  }
}

void ChunkClient::Closed(const Connection* connection,
                         const absl::Status& status) {
  std::map<uint64_t, std::shared_ptr<Fetch>> fetches;
  {
    absl::MutexLock lock(&mu_);
    if (connection_.get() == connection) {
      // The next request makes another one.
      state_ = State::kNew;
      connection_ = nullptr;
      fetches.swap(fetches_);
      segments_.clear();
      Metrics::Get()->data_channels.fetch_sub(1);
    }
  }
  for (const auto& [call, fetch] : fetches) fetch->Fail(status);
  NoWay(status);  // If it never opened.
}

void ChunkClient::NoWay(const absl::Status& status) {
  std::map<uint64_t, std::shared_ptr<Fetch>> fetches;
  {
    absl::MutexLock lock(&mu_);
    if (state_ != State::kConnecting) return;
    state_ = State::kUnreachable;
    fetches.swap(fetches_);
  }
  LOG(INFO) << "tf_fuse: no data channel to " << AddressOf(card_) << ": "
            << status << "; what it sends comes by gRPC.";
  for (const auto& [call, fetch] : fetches) fetch->NoWay();
}

std::shared_ptr<Fetch> ChunkClient::Find(uint64_t call) {
  absl::MutexLock lock(&mu_);
  auto found = fetches_.find(call);
  return found == fetches_.end() ? nullptr : found->second;
}

void ChunkClient::Forget(uint64_t call) {
  std::shared_ptr<Fetch> last;  // Perhaps; not destroyed under the lock.
  absl::MutexLock lock(&mu_);
  auto found = fetches_.find(call);
  if (found == fetches_.end()) return;
  last = std::move(found->second);
  fetches_.erase(found);
}

absl::Status ChunkClient::AddSegment(const v1::Segment& segment, int fd) {
  if (fd < 0) return absl::DataLossError("data channel: no descriptor came");
  uint64_t mapped = 0;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, memory] : segments_) mapped += memory->size();
    if (segments_.size() >= kMaxSegments ||
        segment.bytes() > kMaxMappedBytes - mapped) {
      CloseSocket(fd);
      return absl::DataLossError(absl::StrCat(
          "data channel: a segment of ", segment.bytes(), " bytes behind ",
          segments_.size(), " of ", mapped, " bytes; the limits are ",
          kMaxSegments, " and ", kMaxMappedBytes, " bytes"));
    }
  }
  absl::StatusOr<std::unique_ptr<SharedMemory>> memory =
      SharedMemory::Map(fd, segment.bytes());
  if (!memory.ok()) return memory.status();
  std::shared_ptr<SharedMemory> last = *std::move(memory);
  absl::MutexLock lock(&mu_);
  segments_[segment.id()].swap(last);
  return absl::OkStatus();
}

std::shared_ptr<SharedMemory> ChunkClient::SegmentOf(uint32_t id) {
  absl::MutexLock lock(&mu_);
  auto found = segments_.find(id);
  return found == segments_.end() ? nullptr : found->second;
}

void ChunkClient::GiveBack(uint64_t lease,
                           const std::shared_ptr<Connection>& lender) {
  if (lender == nullptr) return;
  v1::ChannelMessage message;
  message.mutable_release()->add_leases(lease);
  lender->Send(message);
}

}  // namespace tf_fuse
