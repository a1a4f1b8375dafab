// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Serves one consumer over its connection to the producer's data channel
// server.

#ifndef TF_FUSE_CC_CHANNEL_CONSUMER_CONNECTION_H_
#define TF_FUSE_CC_CHANNEL_CONSUMER_CONNECTION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/synchronization/mutex.h"
#include "channel/calls/call_server.h"
#include "channel/chunk_source.h"
#include "channel/parcel.h"
#include "channel/shared_memory/blocks.h"
#include "channel/socket/connection.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tf_fuse {

struct Tokens {
  std::string client;
  std::string server;
};

class ServedChunk;

class ConsumerConnection
    : public Connection::Receiver,
      public std::enable_shared_from_this<ConsumerConnection> {
 public:
  // Null if it was hung up on.
  static std::shared_ptr<ConsumerConnection> Begin(
      std::shared_ptr<Connection> connection, const Tokens& tokens);

  ConsumerConnection(std::shared_ptr<Connection> connection,
                     const Tokens& tokens)
      : connection_(connection),
        tokens_(tokens),
        served_calls_(std::make_shared<CallServer>(std::move(connection))) {}

  // The connection of that number; null if there is none (any more).
  static std::shared_ptr<ConsumerConnection> Find(uint64_t channel);
  // Whether chunks go through shared memory.
  bool shares_memory();
  // Keeps `parcel` until the consumer takes it or goes away. Returns the number
  // to ask with; 0 if the consumer is gone, or has left too many.
  uint64_t Put(std::shared_ptr<Parcel> parcel);

  absl::StatusOr<char*> DestinationOf(const v1::ChannelMessage& message,
                                      uint64_t bytes) override;
  absl::Status OnMessage(const v1::ChannelMessage& message, uint64_t bytes,
                         int fd) override;
  void OnClosed(const absl::Status& status) override;

  // Whether nobody has shown the tokens yet.
  bool IsStranger();
  void HangUp(const absl::Status& why) { connection_->Close(why); }

 private:
  friend class ServedChunk;

  absl::Status OnHello(const v1::Hello& hello);
  absl::Status OnRequest(const v1::ChunkRequest& request);
  void OnCancel(const v1::Cancel& cancel);
  absl::StatusOr<PostedChunk> TakeParcel(const v1::ChunkRequest& request);
  void OnPosted(uint64_t call, uint64_t bytes,
                absl::StatusOr<PostedChunk> posted, bool is_parcel = false);
  // Sends a chunk, or the next parts of it, as far as blocks are free.
  void SendParts(const std::shared_ptr<ServedChunk>& chunk);
  // False if the rest is sent when a part comes back, or was sent at once.
  bool SendNextPart(const std::shared_ptr<ServedChunk>& chunk);
  void SendDirectly(const std::shared_ptr<ServedChunk>& chunk);
  void SendShared(const std::shared_ptr<ServedChunk>& chunk,
                  const SharedBlocks::Block& block);
  void SendSegment(const SharedBlocks::Block& block);
  void SendError(uint64_t call, const absl::Status& status);
  // False if none is free, or the consumer has its part of them.
  bool TakeBlock(SharedBlocks::Block* block);
  void GiveBlock(const SharedBlocks::Block& block);
  // Notes what the consumer will give back; false if it is gone.
  bool Lend(const SharedBlocks::Block& block,
            std::shared_ptr<ServedChunk> chunk);
  void TakeBack(uint64_t lease);

  struct Loan {
    SharedBlocks::Block block;
    std::shared_ptr<ServedChunk> chunk;
  };
  struct Call {
    std::shared_ptr<tensorflow::CancellationManager> cancellation;
  };

  const std::shared_ptr<Connection> connection_;
  const Tokens tokens_;
  const std::shared_ptr<CallServer> served_calls_;
  absl::Mutex mu_;
  bool knows_tokens_ ABSL_GUARDED_BY(mu_) = false;
  bool shares_memory_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t channel_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::shared_ptr<Parcel>> parcels_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Call> calls_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Loan> loans_ ABSL_GUARDED_BY(mu_);  // By lease.
  uint64_t blocks_ ABSL_GUARDED_BY(mu_) = 0;  // Being filled, or lent.
  std::set<uint32_t> sent_segments_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_CONSUMER_CONNECTION_H_
