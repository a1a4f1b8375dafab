// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/serving.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/copy_pool.h"
#include "collectives/memory.h"
#include "collectives/peer_card.h"
#include "collectives/sockets.h"
#include "transport/limits.h"
#include "transport/metrics.h"

namespace tf_fuse {

namespace {

// Up to so many bytes go through the socket: two more messages and a change of
// thread cost more than two more copies.
constexpr uint64_t kMaxDirectBytes = 32 << 10;
// Slots that one chunk has under way: one is filled while others are read.
constexpr int kSlotsPerChunk = 3;
constexpr size_t kMaxCalls = 1 << 16;
constexpr size_t kMaxParcels = 1 << 16;

// The open connections by their numbers.
struct Channels {
  absl::Mutex mu;
  std::map<uint64_t, std::weak_ptr<Serving>> by_number ABSL_GUARDED_BY(mu);
};

Channels* AllChannels() {
  static Channels* channels = new Channels;
  return channels;
}

}  // namespace

// A chunk while it is sent.
class ServedChunk {
 public:
  ServedChunk(uint64_t call, PostedChunk posted, uint64_t bytes, bool is_parcel)
      : call(call),
        bytes(bytes),
        is_parcel(is_parcel),
        posted_(std::move(posted)) {}
  // All parts are copied, or nobody wants them: the producer goes on.
  ~ServedChunk() { posted_.done(); }

  // Null if it does not lie in one piece.
  const char* data() const { return posted_.data; }
  void Read(uint64_t begin, uint64_t size, char* to) const {
    if (posted_.read != nullptr) return posted_.read(begin, size, to);
    std::memcpy(to, posted_.data + begin, size);
  }

  const uint64_t call;
  const uint64_t bytes;
  const bool is_parcel;
  absl::Mutex mu;
  uint64_t next ABSL_GUARDED_BY(mu) = 0;  // What was not taken up yet.
  int slots ABSL_GUARDED_BY(mu) = 0;      // Under way.

 private:
  const PostedChunk posted_;
};

std::shared_ptr<Serving> Serving::Begin(std::shared_ptr<Connection> connection,
                                        const Tokens& tokens) {
  // A socket's name is no secret, but only the same user has business here.
  if (connection->is_unix() && connection->PeerUser() != geteuid()) {
    return nullptr;
  }
  auto serving = std::make_shared<Serving>(connection, tokens);
  const absl::Status status = connection->Start(serving);
  if (status.ok()) return serving;
  connection->Close(status);
  return nullptr;
}

bool Serving::IsStranger() {
  absl::MutexLock lock(&mu_);
  return !knows_tokens_ && !closed_;
}

absl::StatusOr<char*> Serving::DestinationOf(const v1::ChannelMessage& message,
                                             uint64_t bytes) {
  return absl::DataLossError("data channel: a consumer sent bytes");
}

absl::Status Serving::OnMessage(const v1::ChannelMessage& message,
                                uint64_t bytes, int fd) {
  if (fd >= 0) {
    CloseSocket(fd);
    return absl::DataLossError("data channel: a consumer sent a descriptor");
  }
  if (message.has_hello()) return OnHello(message.hello());
  {
    absl::MutexLock lock(&mu_);
    if (!knows_tokens_) {
      return absl::UnauthenticatedError("data channel: no greeting came");
    }
  }
  switch (message.kind_case()) {
    case v1::ChannelMessage::kRequest:
      return OnRequest(message.request());
    case v1::ChannelMessage::kRelease:
      for (uint64_t lease : message.release().leases()) TakeBack(lease);
      return absl::OkStatus();
    case v1::ChannelMessage::kCancel: {
      std::shared_ptr<tensorflow::CancellationManager> cancellation;
      {
        absl::MutexLock lock(&mu_);
        auto found = calls_.find(message.cancel().call());
        if (found != calls_.end()) cancellation = found->second.cancellation;
      }
      if (cancellation != nullptr) cancellation->StartCancel();
      return absl::OkStatus();
    }
    default:
      return absl::DataLossError("data channel: a message of no known kind");
  }
}

absl::Status Serving::OnHello(const v1::Hello& hello) {
  if (hello.version() != kChannelVersion || hello.token() != tokens_.client) {
    return absl::UnauthenticatedError(
        "data channel: a process that is not of the group");
  }
  // A number that others cannot guess: parcels for one are no business of
  // another. 0, no parcels, where the system has no random numbers.
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

std::shared_ptr<Serving> Serving::Find(uint64_t channel) {
  absl::MutexLock lock(&AllChannels()->mu);
  auto found = AllChannels()->by_number.find(channel);
  return found == AllChannels()->by_number.end() ? nullptr
                                                 : found->second.lock();
}

bool Serving::shares_memory() {
  absl::MutexLock lock(&mu_);
  return shares_memory_;
}

uint64_t Serving::Put(std::shared_ptr<Parcel> parcel) {
  // Of all connections: a connection that is made anew knows no number of the
  // one before.
  static std::atomic<uint64_t> parcels{0};
  absl::MutexLock lock(&mu_);
  if (closed_ || parcels_.size() >= kMaxParcels) return 0;
  const uint64_t id = parcels.fetch_add(1) + 1;
  parcels_[id] = std::move(parcel);
  return id;
}

absl::StatusOr<PostedChunk> Serving::TakeParcel(
    const v1::ChunkRequest& request) {
  std::shared_ptr<Parcel> parcel;
  {
    absl::MutexLock lock(&mu_);
    auto found = parcels_.find(request.parcel());
    if (found == parcels_.end()) {
      return absl::UnavailableError(absl::StrCat(
          "data channel: parcel ", request.parcel(),
          " is not there: it was taken, or the channel was lost since"));
    }
    if (found->second->bytes() != request.bytes()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data channel: parcel ", request.parcel(), " has ",
          found->second->bytes(), " bytes, asked for as ", request.bytes()));
    }
    parcel = std::move(found->second);
    parcels_.erase(found);
  }
  return parcel->Take();
}

absl::Status Serving::OnRequest(const v1::ChunkRequest& request) {
  const uint64_t call = request.call();
  auto cancellation = std::make_shared<tensorflow::CancellationManager>();
  {
    absl::MutexLock lock(&mu_);
    if (calls_.size() >= kMaxCalls) {
      return absl::ResourceExhaustedError(
          absl::StrCat("data channel: ", kMaxCalls, " requests wait"));
    }
    if (!calls_.emplace(call, Call{cancellation}).second) {
      return absl::DataLossError("data channel: a request came twice");
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

void Serving::OnPosted(uint64_t call, uint64_t bytes,
                       absl::StatusOr<PostedChunk> posted, bool is_parcel) {
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

void Serving::SendError(uint64_t call, const absl::Status& status) {
  // gRPC limits texts likewise.
  constexpr size_t kMaxText = 8 << 10;
  v1::ChannelMessage message;
  v1::ChunkAnswer* answer = message.mutable_answer();
  answer->set_call(call);
  answer->set_code(static_cast<int>(status.code()));
  answer->set_text(std::string(status.message().substr(0, kMaxText)));
  answer->set_last(true);
  connection_->Send(message);
}

void Serving::SendDirectly(const std::shared_ptr<ServedChunk>& chunk) {
  uint64_t begin;
  {
    absl::MutexLock lock(&chunk->mu);
    begin = std::exchange(chunk->next, chunk->bytes);
  }
  const uint64_t bytes = chunk->bytes - begin;
  const char* data = chunk->data() == nullptr ? nullptr : chunk->data() + begin;
  std::shared_ptr<char> whole;
  if (data == nullptr && bytes > 0) {
    whole = RecycledBuffer(bytes);
    if (whole == nullptr) {
      return SendError(chunk->call,
                       absl::ResourceExhaustedError(absl::StrCat(
                           "no memory for a chunk of ", bytes, " bytes")));
    }
    chunk->Read(begin, bytes, whole.get());
    data = whole.get();
  }
  v1::ChannelMessage message;
  v1::ChunkAnswer* answer = message.mutable_answer();
  answer->set_call(chunk->call);
  answer->set_offset(begin);
  answer->set_last(true);
  connection_->Send(message, data, bytes,
                    [chunk, whole](const absl::Status& status) {});
}

void Serving::SendParts(const std::shared_ptr<ServedChunk>& chunk) {
  // On another thread: this one is the producer's, or the channel's.
  ScheduleCopy([self = shared_from_this(), chunk] {
    while (self->SendNextPart(chunk)) {
    }
  });
}

bool Serving::SendNextPart(const std::shared_ptr<ServedChunk>& chunk) {
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return false;
  }
  {
    absl::MutexLock lock(&chunk->mu);
    if (chunk->next >= chunk->bytes || chunk->slots >= kSlotsPerChunk) {
      return false;
    }
    ++chunk->slots;
  }
  SharedSlots::Slot slot;
  const bool taken = SharedSlots::Get()->Take(
      &slot, [self = shared_from_this(), chunk](bool may_come) {
        {
          absl::MutexLock lock(&chunk->mu);
          --chunk->slots;
        }
        if (may_come) {
          self->SendParts(chunk);
        } else {
          self->SendDirectly(chunk);
        }
      });
  if (!taken) return false;
  SendShared(chunk, slot);
  return true;
}

void Serving::SendShared(const std::shared_ptr<ServedChunk>& chunk,
                         const SharedSlots::Slot& slot) {
  uint64_t begin;
  uint64_t bytes;
  {
    absl::MutexLock lock(&chunk->mu);
    begin = chunk->next;
    bytes = std::min(kSlotBytes, chunk->bytes - begin);
    chunk->next += bytes;
  }
  if (bytes == 0) return SharedSlots::Get()->Give(slot);
  chunk->Read(begin, bytes, slot.data);
  if (!chunk->is_parcel) {
    Metrics::Get()->collective_copied_bytes.fetch_add(bytes);
  }
  SendSegment(slot);
  v1::ChannelMessage message;
  v1::ChunkAnswer* answer = message.mutable_answer();
  answer->set_call(chunk->call);
  answer->set_offset(begin);
  answer->set_segment(slot.segment);
  answer->set_segment_offset(slot.offset);
  answer->set_segment_bytes(bytes);
  answer->set_last(begin + bytes == chunk->bytes);
  answer->set_lease(Lend(slot, answer->last() ? nullptr : chunk));
  if (answer->lease() == 0) return SharedSlots::Get()->Give(slot);
  connection_->Send(message);
}

void Serving::SendSegment(const SharedSlots::Slot& slot) {
  {
    absl::MutexLock lock(&mu_);
    if (sent_segments_.count(slot.segment) > 0) return;
  }
  v1::ChannelMessage message;
  message.mutable_segment()->set_id(slot.segment);
  message.mutable_segment()->set_bytes(slot.memory->size());
  connection_->Send(message, nullptr, 0, nullptr, slot.memory->fd());
  // Only now: what names the segment must come behind it. Two threads may send
  // it twice, which does no harm.
  absl::MutexLock lock(&mu_);
  sent_segments_.insert(slot.segment);
}

uint64_t Serving::Lend(const SharedSlots::Slot& slot,
                       std::shared_ptr<ServedChunk> chunk) {
  absl::MutexLock lock(&mu_);
  if (closed_) return 0;
  Metrics::Get()->lent_chunks.fetch_add(1);
  loans_[++leases_] = {slot, std::move(chunk)};
  return leases_;
}

void Serving::TakeBack(uint64_t lease) {
  Loan loan;
  {
    absl::MutexLock lock(&mu_);
    auto found = loans_.find(lease);
    if (found == loans_.end()) return;
    loan = std::move(found->second);
    loans_.erase(found);
  }
  Metrics::Get()->lent_chunks.fetch_sub(1);
  SharedSlots::Get()->Give(loan.slot);
  if (loan.chunk == nullptr) return;
  {
    absl::MutexLock lock(&loan.chunk->mu);
    --loan.chunk->slots;
  }
  SendParts(loan.chunk);
}

void Serving::OnClosed(const absl::Status& status) {
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
  for (const auto& [id, call] : calls) {
    if (call.cancellation != nullptr) call.cancellation->StartCancel();
  }
  {
    absl::MutexLock lock(&AllChannels()->mu);
    AllChannels()->by_number.erase(channel);
  }
  for (const auto& [id, parcel] : parcels) parcel->Drop(status);
  Metrics::Get()->lent_chunks.fetch_sub(loans.size());
  for (const auto& [lease, loan] : loans) {
    SharedSlots::Get()->Give(loan.slot);
  }
}

}  // namespace tf_fuse
