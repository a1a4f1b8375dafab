// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/consumer_connection.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/metrics.h"
#include "channel/peer_card.h"
#include "channel/served_chunk.h"
#include "channel/socket/descriptors.h"

namespace tf_fuse {

namespace {

// Up to so many bytes go through the socket: two more messages and a change of
// thread cost more than two more copies.
constexpr uint64_t kMaxDirectBytes = 32 << 10;
constexpr size_t kMaxCalls = 1 << 16;
constexpr size_t kMaxParcels = 1 << 16;

// The open connections by their numbers.
struct Channels {
  absl::Mutex mu;
  std::map<uint64_t, std::weak_ptr<ConsumerConnection>> by_number
      ABSL_GUARDED_BY(mu);
};

Channels* AllChannels() {
  static Channels* channels = new Channels;
  return channels;
}

}  // namespace

std::shared_ptr<ConsumerConnection> ConsumerConnection::Begin(
    std::shared_ptr<Connection> connection, const Tokens& tokens) {
  // Anyone may learn a socket's name, but only the same user may connect.
  if (connection->is_unix() && connection->PeerUser() != geteuid()) {
    return nullptr;
  }
  auto serving = std::make_shared<ConsumerConnection>(connection, tokens);
  const absl::Status status = connection->Start(serving);
  if (status.ok()) return serving;
  connection->Close(status);
  return nullptr;
}

bool ConsumerConnection::IsStranger() {
  absl::MutexLock lock(&mu_);
  return !knows_tokens_ && !closed_;
}

absl::StatusOr<char*> ConsumerConnection::DestinationOf(
    const v1::ChannelMessage& message, uint64_t bytes) {
  if (message.has_call_request() && !IsStranger()) {
    return served_calls_->DestinationOf(bytes);
  }
  return absl::DataLossError(
      "data channel: the consumer sent bytes after a message that has none");
}

absl::Status ConsumerConnection::OnMessage(const v1::ChannelMessage& message,
                                           uint64_t bytes, int fd) {
  if (fd >= 0) {
    CloseDescriptor(fd);
    return absl::DataLossError(
        "data channel: the consumer sent a descriptor; only the producer may");
  }
  if (message.has_hello()) return OnHello(message.hello());
  {
    absl::MutexLock lock(&mu_);
    if (!knows_tokens_) {
      return absl::UnauthenticatedError(
          "data channel: the first message is not a greeting");
    }
  }
  switch (message.kind_case()) {
    case v1::ChannelMessage::kRequest:
      return OnRequest(message.request());
    case v1::ChannelMessage::kRelease:
      for (uint64_t lease : message.release().leases()) TakeBack(lease);
      return absl::OkStatus();
    case v1::ChannelMessage::kCancel:
      OnCancel(message.cancel());
      return absl::OkStatus();
    case v1::ChannelMessage::kCallRequest:
      return served_calls_->OnRequest(message.call_request(), bytes);
    default:
      return absl::DataLossError("data channel: a message of an unknown kind");
  }
}

void ConsumerConnection::OnCancel(const v1::Cancel& cancel) {
  if (cancel.is_call()) return served_calls_->Cancel(cancel.call());
  std::shared_ptr<tensorflow::CancellationManager> cancellation;
  {
    absl::MutexLock lock(&mu_);
    auto found = calls_.find(cancel.call());
    if (found != calls_.end()) cancellation = found->second.cancellation;
  }
  if (cancellation != nullptr) cancellation->StartCancel();
}

absl::Status ConsumerConnection::OnHello(const v1::Hello& hello) {
  if (hello.version() != kChannelVersion || hello.token() != tokens_.client) {
    return absl::UnauthenticatedError(
        "data channel: the process that connected is not in the group");
  }
  // A number that others cannot guess, so that no consumer takes another one's
  // parcels. 0, no parcels, where the system has no random numbers.
  uint64_t channel;
  {
    absl::MutexLock lock(&mu_);
    if (channel_ == 0) channel_ = RandomNumber();
    channel = channel_;
    knows_tokens_ = true;
    shares_memory_ = hello.shared_memory() && connection_->is_unix();
  }
  if (channel != 0) {
    absl::MutexLock lock(&AllChannels()->mu);
    AllChannels()->by_number[channel] = weak_from_this();
  }
  v1::ChannelMessage answer;
  answer.mutable_hello()->set_version(kChannelVersion);
  answer.mutable_hello()->set_token(tokens_.server);
  answer.mutable_hello()->set_channel(channel);
  connection_->Send(answer);
  return absl::OkStatus();
}

std::shared_ptr<ConsumerConnection> ConsumerConnection::Find(uint64_t channel) {
  absl::MutexLock lock(&AllChannels()->mu);
  auto found = AllChannels()->by_number.find(channel);
  return found == AllChannels()->by_number.end() ? nullptr
                                                 : found->second.lock();
}

bool ConsumerConnection::shares_memory() {
  absl::MutexLock lock(&mu_);
  return shares_memory_;
}

uint64_t ConsumerConnection::Put(std::shared_ptr<Parcel> parcel) {
  // Of all connections: a connection that is made anew knows no number of the
  // one before.
  static std::atomic<uint64_t> parcels{0};
  absl::MutexLock lock(&mu_);
  if (closed_ || parcels_.size() >= kMaxParcels) return 0;
  const uint64_t id = parcels.fetch_add(1) + 1;
  parcels_[id] = std::move(parcel);
  return id;
}

absl::StatusOr<PostedChunk> ConsumerConnection::TakeParcel(
    const v1::ChunkRequest& request) {
  std::shared_ptr<Parcel> parcel;
  {
    absl::MutexLock lock(&mu_);
    auto found = parcels_.find(request.parcel());
    if (found == parcels_.end()) {
      return absl::UnavailableError(absl::StrCat(
          "data channel: parcel ", request.parcel(),
          " does not exist: it was taken, or the channel was lost since"));
    }
    if (found->second->bytes() != request.bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data channel: parcel ", request.parcel(), " has ",
                       found->second->bytes(), " bytes, but the request says ",
                       request.bytes()));
    }
    parcel = std::move(found->second);
    parcels_.erase(found);
  }
  return parcel->Take();
}

absl::Status ConsumerConnection::OnRequest(const v1::ChunkRequest& request) {
  const uint64_t call = request.call();
  auto cancellation = std::make_shared<tensorflow::CancellationManager>();
  {
    absl::MutexLock lock(&mu_);
    if (calls_.size() >= kMaxCalls) {
      return absl::ResourceExhaustedError(
          absl::StrCat("data channel: ", kMaxCalls, " requests already wait"));
    }
    if (!calls_.emplace(call, Call{cancellation}).second) {
      return absl::DataLossError(
          "data channel: two requests have the same number");
    }
  }
  if (request.parcel() != 0) {
    OnPosted(call, request.bytes(), TakeParcel(request), /*is_parcel=*/true);
    return absl::OkStatus();
  }
  const std::shared_ptr<ChunkSource> source =
      ChunkSource::Find(request.task_token());
  if (source == nullptr) {
    OnPosted(call, 0, absl::UnavailableError("the task has ended"));
    return absl::OkStatus();
  }
  const ChunkKey key = {request.step_id(), request.key(),
                        request.device(),  request.device_incarnation(),
                        request.bytes(),   request.collective(),
                        request.operand(), request.consumer()};
  source->Take(key, cancellation.get(),
               [self = shared_from_this(), call, bytes = request.bytes(),
                cancellation](absl::StatusOr<PostedChunk> posted) {
                 self->OnPosted(call, bytes, std::move(posted));
               });
  return absl::OkStatus();
}

void ConsumerConnection::OnPosted(uint64_t call, uint64_t bytes,
                                  absl::StatusOr<PostedChunk> posted,
                                  bool is_parcel) {
  bool shared;
  std::shared_ptr<tensorflow::CancellationManager> last;
  {
    absl::MutexLock lock(&mu_);
    auto found = calls_.find(call);
    if (found != calls_.end()) {
      last = std::move(found->second.cancellation);
      calls_.erase(found);
    }
    shared = shares_memory_ && bytes > kMaxDirectBytes;
  }
  if (!posted.ok()) return SendError(call, posted.status());
  auto chunk =
      std::make_shared<ServedChunk>(call, *std::move(posted), bytes, is_parcel);
  if (!shared) return SendDirectly(chunk);
  SendParts(chunk);
}

void ConsumerConnection::OnClosed(const absl::Status& status) {
  std::map<uint64_t, Call> calls;
  std::map<uint64_t, Loan> loans;
  std::map<uint64_t, std::shared_ptr<Parcel>> parcels;
  uint64_t channel;
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    channel = channel_;
    parcels.swap(parcels_);
    calls = calls_;  // Each leaves the map when it is called back.
    loans.swap(loans_);
  }
  served_calls_->CancelAll();
  for (const auto& [id, call] : calls) {
    if (call.cancellation != nullptr) call.cancellation->StartCancel();
  }
  {
    absl::MutexLock lock(&AllChannels()->mu);
    AllChannels()->by_number.erase(channel);
  }
  for (const auto& [id, parcel] : parcels) parcel->Drop(status);
  Metrics::Get()->lent_chunks.fetch_sub(loans.size());
  // A consumer that still reads one finds another stamp there.
  for (const auto& [lease, loan] : loans) GiveBlock(loan.block);
}

}  // namespace tf_fuse
