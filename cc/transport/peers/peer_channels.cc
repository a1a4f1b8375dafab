// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/peers/peer_channels.h"

#include "absl/status/statusor.h"
#include "channel/peer_card.h"
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

PeerChannels::Channel PeerChannels::Find(const std::string& task,
                                         uint64_t incarnation) {
  Channel channel;
  if (!any_.load(std::memory_order_acquire)) return channel;
  {
    absl::MutexLock lock(&mu_);
    const auto found = clients_.find({task, incarnation});
    if (found == clients_.end() || found->second == nullptr) return channel;
    channel.client = found->second;
  }
  channel.number = channel.client->Channel();
  return channel;
}

void PeerChannels::Open(
    const std::string& task, uint64_t incarnation,
    std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
    tensorflow::Device* device) {
  if (!AllowedPaths().shared_memory && !AllowedPaths().tcp) return;
  const Key key(task, incarnation);
  {
    absl::MutexLock lock(&mu_);
    if (clients_.size() >= kMaxPeers) clients_.clear();
    if (!clients_.emplace(key, nullptr).second) return;
  }
  v1::FuseRecvTensorRequest question;
  question.set_question(v1::QUESTION_CARD);
  AskPeer(
      std::move(workers), task, device, std::move(question), kAnswerTimeoutMs,
      [this, key](const absl::Status& status, const tensorflow::Tensor& frame) {
        OnCard(key, status, frame);
      });
}

void PeerChannels::OnCard(const Key& key, const absl::Status& status,
                          const tensorflow::Tensor& frame) {
  v1::PeerCard card;
  std::shared_ptr<ChunkClient> client;
  const absl::StatusOr<std::string> bytes =
      status.ok() ? ReadBytesResponse(frame)
                  : absl::StatusOr<std::string>(status);
  // An older version has none.
  if (bytes.ok() && card.ParseFromString(*bytes) &&
      card.version() == kChannelVersion) {
    client = ChunkClient::To(card);
  }
  {
    absl::MutexLock lock(&mu_);
    // One that could not be asked is asked again, when it sends again.
    if (!status.ok()) clients_.erase(key);
    if (client == nullptr) return;
    clients_[key] = client;
  }
  client->Channel();
  any_.store(true, std::memory_order_release);
}

}  // namespace tf_fuse
