// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/chunk_client.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/executors.h"
#include "base/metrics.h"
#include "channel/peer_card.h"
#include "channel/socket/descriptors.h"
#include "channel/socket/keep_alive.h"
#include "channel/socket/sockets.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

namespace {

// The most bytes of a peer's memory that are mapped here, all segments
// together. They cost addresses, not memory, and a process has 128 times as
// many addresses.
constexpr uint64_t kMaxMappedBytes = uint64_t{1} << 40;
constexpr size_t kMaxSegments = 1 << 14;

// A peer that is stopped, or whose packets are lost, does not answer.
constexpr absl::Duration kConnectLimit = absl::Seconds(5);
// More: the peer's thread may have much to do.
constexpr absl::Duration kGreetingLimit = absl::Seconds(10);

// The ways to a process, best first. That its Unix socket can be reached is
// likely, not certain: another user may run it.
std::vector<std::string> AddressesOf(const v1::PeerCard& card) {
  static const std::string* const own_host = new std::string(HostId());
  const bool same_host = !own_host->empty() && card.host_id() == *own_host;
  std::vector<std::string> addresses;
  if (AllowedPaths().shared_memory && same_host &&
      !card.unix_socket().empty()) {
    addresses.push_back(absl::StrCat("unix:", card.unix_socket()));
  }
  if (AllowedPaths().tcp && !card.tcp_address().empty()) {
    addresses.push_back(card.tcp_address());
  }
  return addresses;
}

absl::Status GreetingTooLate() {
  return absl::DeadlineExceededError(
      "data channel: the greeting came too late");
}

}  // namespace

// What comes on the connection to a server.
class ClientReceiver : public Connection::Receiver {
 public:
  ClientReceiver(std::shared_ptr<ChunkClient> client,
                 std::shared_ptr<ChunkClient::Greeting> greeting,
                 std::shared_ptr<Connection> connection)
      : client_(std::move(client)),
        greeting_(std::move(greeting)),
        call_client_(std::make_shared<CallClient>(connection)),
        connection_(std::move(connection)) {}

  absl::StatusOr<char*> DestinationOf(const v1::ChannelMessage& message,
                                      uint64_t bytes) override {
    if (greeted_ && message.has_call_answer()) {
      return call_client_->DestinationOf(message.call_answer(), bytes);
    }
    if (!greeted_ || !message.has_answer()) {
      return absl::DataLossError(
          "data channel: bytes follow a message that is not an answer");
    }
    const std::shared_ptr<Fetch> fetch = client_->Find(message.answer().call());
    if (fetch == nullptr) return nullptr;  // Cancelled meanwhile.
    return fetch->DestinationOf(message.answer(), bytes);
  }

  absl::Status OnMessage(const v1::ChannelMessage& message, uint64_t bytes,
                         int fd) override {
    if (!greeted_ && !message.has_hello()) {
      if (fd >= 0) CloseDescriptor(fd);
      return absl::UnauthenticatedError(
          "data channel: the first message is not a greeting");
    }
    if (message.has_segment()) {
      return client_->AddSegment(message.segment(), fd);
    }
    if (fd >= 0) {
      CloseDescriptor(fd);
      return absl::DataLossError(
          "data channel: a descriptor came without shared memory");
    }
    if (message.has_hello()) {
      if (message.hello().token() != client_->card_.server_token()) {
        return absl::UnauthenticatedError(
            "data channel: the process that answers is not in the group");
      }
      if (greeted_) return absl::OkStatus();
      greeted_ = client_->Opened(greeting_.get(), connection_, call_client_,
                                 message.hello().channel());
      return greeted_ ? absl::OkStatus() : GreetingTooLate();
    }
    if (message.has_call_answer()) {
      call_client_->OnAnswer(message.call_answer(), bytes);
      return absl::OkStatus();
    }
    if (!message.has_answer()) {
      return absl::DataLossError("data channel: a message of an unknown kind");
    }
    const v1::ChunkAnswer& answer = message.answer();
    const std::shared_ptr<Fetch> fetch = client_->Find(answer.call());
    if (fetch != nullptr) return fetch->OnAnswer(answer, bytes);
    if (answer.lease() != 0) client_->GiveBack(answer.lease(), connection_);
    return absl::OkStatus();
  }

  void OnClosed(const absl::Status& status) override {
    client_->Closed(greeting_.get(), connection_.get(), status);
    call_client_->OnClosed(status);
    connection_ = nullptr;
  }

 private:
  const std::shared_ptr<ChunkClient> client_;
  const std::shared_ptr<ChunkClient::Greeting> greeting_;
  const std::shared_ptr<CallClient> call_client_;
  std::shared_ptr<Connection> connection_;
  bool greeted_ = false;  // It has shown the server's token.
};

std::shared_ptr<ChunkClient> ChunkClient::To(const v1::PeerCard& card) {
  if (AddressesOf(card).empty()) return nullptr;
  static absl::Mutex mu(absl::kConstInit);
  static auto* const clients =
      new std::map<std::string, std::shared_ptr<ChunkClient>>;
  absl::MutexLock lock(&mu);
  std::shared_ptr<ChunkClient>& client = (*clients)[card.server_token()];
  if (client == nullptr) client = std::make_shared<ChunkClient>(card);
  return client;
}

std::shared_ptr<ChunkClient> ChunkClient::ForCalls(const v1::PeerCard& card) {
  if (AddressesOf(card).empty()) return nullptr;
  return std::make_shared<ChunkClient>(card, kRetryAfter, /*quiet=*/true);
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
    connect = BeginToConnect();
    no_way = has_failed_;
    if (!no_way) fetches_[fetch->call()] = fetch;
    connection = connection_;
  }
  if (connect) ScheduleConnect();
  if (no_way) {
    fetch->NoWay();
  } else if (connection != nullptr) {
    if (fetch->SentBy(connection)) connection->Send(fetch->Request());
  }
  return fetch;
}

bool ChunkClient::BeginToConnect() {
  if (connecting_ || connection_ != nullptr || absl::Now() < next_attempt_) {
    return false;
  }
  connecting_ = true;
  return true;
}

void ChunkClient::ScheduleConnect() {
  ScheduleElsewhere([self = shared_from_this()] { self->Connect(); });
}

void ChunkClient::Connect() {
  std::vector<std::string> texts;
  for (const std::string& address : AddressesOf(card_)) {
    const absl::Status status = ConnectBy(address);
    if (status.ok()) return;
    texts.push_back(status.ToString());
  }
  NoWay(absl::UnavailableError(absl::StrJoin(texts, "; ")));
}

absl::Status ChunkClient::ConnectBy(const std::string& address) {
  const absl::Time begin = absl::Now();
  const absl::StatusOr<int> fd = ConnectTo(address, begin + kConnectLimit);
  if (!fd.ok()) return fd.status();
  // Requests are few and small.
  LimitUnacknowledged(*fd);
  const std::shared_ptr<Connection> connection = Connection::Create(*fd);
  // Another user may have taken the name of a process that has ended.
  if (connection->is_unix() && connection->PeerUser() != geteuid()) {
    return absl::UnauthenticatedError(absl::StrCat(
        "data channel at ", address, ": user ", connection->PeerUser(),
        " answers, expected user ", geteuid()));
  }
  const auto greeting = std::make_shared<Greeting>();
  absl::Status status = connection->Start(std::make_shared<ClientReceiver>(
      shared_from_this(), greeting, connection));
  if (!status.ok()) return status;
  v1::ChannelMessage message;
  message.mutable_hello()->set_version(kChannelVersion);
  message.mutable_hello()->set_token(card_.client_token());
  message.mutable_hello()->set_shared_memory(connection->is_unix());
  connection->Send(message);
  greeting->ended.WaitForNotificationWithDeadline(begin + kGreetingLimit);
  {
    absl::MutexLock lock(&mu_);
    if (greeting->over) return greeting->status;
    greeting->over = true;
  }
  status = absl::DeadlineExceededError(
      absl::StrCat("data channel at ", address, ": no greeting came within ",
                   absl::FormatDuration(kGreetingLimit)));
  connection->Close(status);
  return status;
}

uint64_t ChunkClient::Channel() {
  {
    absl::MutexLock lock(&mu_);
    if (connection_ != nullptr) return channel_;
    if (!BeginToConnect()) return 0;
  }
  ScheduleConnect();
  return 0;
}

std::shared_ptr<CallClient> ChunkClient::Calls() {
  if (Channel() == 0) return nullptr;
  absl::MutexLock lock(&mu_);
  return call_client_;
}

bool ChunkClient::Opened(Greeting* greeting,
                         std::shared_ptr<Connection> connection,
                         std::shared_ptr<CallClient> call_client,
                         uint64_t channel) {
  std::vector<std::shared_ptr<Fetch>> waiting;
  {
    absl::MutexLock lock(&mu_);
    if (greeting->over) return false;
    greeting->over = true;
    connecting_ = false;
    has_failed_ = false;
    connection_ = connection;
    call_client_ = std::move(call_client);
    channel_ = channel;
    for (const auto& [call, fetch] : fetches_) waiting.push_back(fetch);
  }
  greeting->ended.Notify();
  Metrics::Get()->data_channels.fetch_add(1);
  for (const std::shared_ptr<Fetch>& fetch : waiting) {
    if (fetch->SentBy(connection)) connection->Send(fetch->Request());
  }
  return true;
}

void ChunkClient::Closed(Greeting* greeting, const Connection* connection,
                         const absl::Status& status) {
  std::map<uint64_t, std::shared_ptr<Fetch>> fetches;
  {
    absl::MutexLock lock(&mu_);
    if (!greeting->over) {
      // Connect() goes on.
      greeting->over = true;
      greeting->status = status;
      greeting->ended.Notify();
    }
    if (connection_.get() != connection) return;
    // The next request makes another one.
    connection_ = nullptr;
    call_client_ = nullptr;
    fetches.swap(fetches_);
    segments_.clear();
    Metrics::Get()->data_channels.fetch_sub(1);
  }
  for (const auto& [call, fetch] : fetches) fetch->Fail(status);
}

void ChunkClient::NoWay(const absl::Status& status) {
  std::map<uint64_t, std::shared_ptr<Fetch>> fetches;
  bool is_news;
  {
    absl::MutexLock lock(&mu_);
    is_news = !has_failed_;
    has_failed_ = true;
    connecting_ = false;
    next_attempt_ = absl::Now() + retry_after_;
    fetches.swap(fetches_);
  }
  if (is_news && !quiet_) {
    LOG(INFO) << "tf_fuse: no data channel to "
              << absl::StrJoin(AddressesOf(card_), " or ") << ": "
              << status.message()
              << "; its chunks take another path. The channel is tried again "
                 "when they are asked for after "
              << absl::FormatDuration(retry_after_) << ".";
  }
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
  if (fd < 0)
    return absl::DataLossError(
        "data channel: shared memory came without a descriptor");
  uint64_t mapped = 0;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, memory] : segments_) mapped += memory->size();
    if (segments_.size() >= kMaxSegments ||
        segment.bytes() > kMaxMappedBytes - mapped) {
      CloseDescriptor(fd);
      return absl::DataLossError(absl::StrCat(
          "data channel: a segment of ", segment.bytes(), " bytes after ",
          segments_.size(), " segments of ", mapped, " bytes; the limits are ",
          kMaxSegments, " segments and ", kMaxMappedBytes, " bytes"));
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
