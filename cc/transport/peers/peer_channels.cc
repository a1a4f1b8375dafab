// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/peers/peer_channels.h"

#include "absl/status/statusor.h"
#include "channel/peer_card.h"
#include "transport/message/failed_slots.h"
#include "transport/peers/ask_peer.h"

namespace tf_fuse {

namespace {

// A cluster whose tasks restart for months must not grow it.
constexpr size_t kMaxPeers = 100000;

}  // namespace

PeerChannels* PeerChannels::Get() {
  static PeerChannels* channels = new PeerChannels;
  return channels;
}

PeerChannels::Channels PeerChannels::Find(const std::string& task,
                                          uint64_t incarnation) {
  Channels channels;
  std::shared_ptr<ChunkClient> calls;
  std::shared_ptr<ChunkClient> tensors;
  {
    absl::MutexLock lock(&mu_);
    const auto found = peers_.find({task, incarnation});
    if (found == peers_.end()) return channels;
    channels.is_known = true;
    latest_[task] = incarnation;
    calls = found->second.calls;
    tensors = found->second.tensors;
    channels.calls.server = found->second.card.call_token();
    channels.parcels = found->second.parcels;
  }
  channels.calls.task = task;
  channels.tensors = channels.calls;
  if (calls != nullptr && recording_.load() == 0) {
    channels.calls.client = calls->Calls();
    channels.tensors.client = tensors->Calls();
  }
  if (channels.parcels != nullptr) {
    channels.parcel_channel = channels.parcels->Channel();
  }
  return channels;
}

PeerCalls PeerChannels::CallsTo(const std::string& task) {
  uint64_t incarnation;
  {
    absl::MutexLock lock(&mu_);
    const auto found = latest_.find(task);
    if (found == latest_.end()) return {};
    incarnation = found->second;
  }
  return Find(task, incarnation).calls;
}

void PeerChannels::Forget(const std::string& task) {
  absl::MutexLock lock(&mu_);
  latest_.erase(task);
}

void PeerChannels::ForgetAll() {
  absl::MutexLock lock(&mu_);
  latest_.clear();
}

void PeerChannels::Open(
    const std::string& task, uint64_t incarnation,
    std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
    tensorflow::Device* device) {
  const Key key(task, incarnation);
  {
    absl::MutexLock lock(&mu_);
    if (peers_.size() >= kMaxPeers) {
      peers_.clear();
      latest_.clear();
    }
    if (!peers_.emplace(key, Peer()).second) return;
  }
  if (!AllowedPaths().shared_memory && !AllowedPaths().tcp) return;
  v1::FuseRecvTensorRequest question;
  question.set_question(v1::QUESTION_CARD);
  AskPeer(
      std::move(workers), task, device, std::move(question), kAnswerTimeoutMs,
      [this, key](const absl::Status& status, const tensorflow::Tensor& frame) {
        OnCard(key, status, frame);
      });
}

void PeerChannels::OpenForLargeFrames(const std::string& task,
                                      uint64_t incarnation) {
  std::shared_ptr<ChunkClient> client;
  {
    absl::MutexLock lock(&mu_);
    const auto found = peers_.find({task, incarnation});
    if (found == peers_.end()) return;
    Peer& peer = found->second;
    peer.has_sent_large = true;
    if (peer.parcels != nullptr || peer.card.version() == 0) return;
    client = peer.parcels = ChunkClient::To(peer.card);
  }
  if (client != nullptr) client->Channel();
}

void PeerChannels::OnCard(const Key& key, const absl::Status& status,
                          const tensorflow::Tensor& frame) {
  v1::PeerCard card;
  const absl::StatusOr<std::string> bytes =
      status.ok() ? ReadBytesResponse(frame)
                  : absl::StatusOr<std::string>(status);
  // An older version has none.
  const bool has_card = bytes.ok() && card.ParseFromString(*bytes) &&
                        card.version() == kChannelVersion;
  std::shared_ptr<ChunkClient> calls;
  std::shared_ptr<ChunkClient> tensors;
  bool has_sent_large;
  {
    absl::MutexLock lock(&mu_);
    // One that could not be asked is asked again, when it sends again.
    if (!status.ok() && !IsAnswerOfPlainPeer(status)) peers_.erase(key);
    const auto found = peers_.find(key);
    if (found == peers_.end() || !has_card) return;
    Peer& peer = found->second;
    peer.card = card;
    if (card.call_token() != 0) {
      calls = peer.calls = ChunkClient::ForCalls(card);
      tensors = peer.tensors = ChunkClient::ForCalls(card);
    }
    has_sent_large = peer.has_sent_large;
  }
  if (calls != nullptr) {
    calls->Channel();
    tensors->Channel();
  }
  if (has_sent_large) OpenForLargeFrames(key.first, key.second);
}

}  // namespace tf_fuse
