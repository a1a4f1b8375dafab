// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The consumer's side of data channels.

#ifndef TF_FUSE_CC_COLLECTIVES_CHUNK_CLIENT_H_
#define TF_FUSE_CC_COLLECTIVES_CHUNK_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "collectives/chunk.h"
#include "collectives/connection.h"
#include "collectives/shared_memory.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

class Fetch;

// One process that chunks are taken from.
class ChunkClient : public std::enable_shared_from_this<ChunkClient> {
 public:
  // That of the process that wrote the card; null if no data channel leads
  // there, as far as is known. Connects in the background.
  static std::shared_ptr<ChunkClient> To(const v1::PeerCard& card);

  explicit ChunkClient(v1::PeerCard card) : card_(std::move(card)) {}

  // The number that the server gave the connection, if it is open now; else 0,
  // and it is opened in the background, unless that has failed.
  uint64_t Channel();

  // Takes a chunk into `destination`, which nobody else writes until `done` is
  // called, on any thread. `no_way` is called instead, on any thread, if there
  // is no connection and there will not be one; then nothing was asked for.
  std::shared_ptr<ChunkCall> Take(const ChunkKey& key, uint64_t task_token,
                                  char* destination, ChunkDone done,
                                  std::function<void()> no_way);
  // The same of a chunk of kSlotBytes at most, which is not copied if it lies
  // in shared memory.
  std::shared_ptr<ChunkCall> Borrow(const ChunkKey& key, uint64_t task_token,
                                    LoanDone done,
                                    std::function<void()> no_way);

 private:
  friend class Fetch;
  friend class ClientReceiver;
  enum class State { kNew, kConnecting, kOpen, kUnreachable };

  std::shared_ptr<ChunkCall> Start(std::shared_ptr<Fetch> fetch);
  void Connect();
  void Opened(std::shared_ptr<Connection> connection, uint64_t channel);
  void Closed(const Connection* connection, const absl::Status& status);
  void NoWay(const absl::Status& status);

  std::shared_ptr<Fetch> Find(uint64_t call);
  void Forget(uint64_t call);
  // Null if the connection was lost.
  std::shared_ptr<Connection> connection();
  absl::Status AddSegment(const v1::Segment& segment, int fd);
  std::shared_ptr<SharedMemory> SegmentOf(uint32_t id);
  void GiveBack(uint64_t lease, const std::shared_ptr<Connection>& lender);

  const v1::PeerCard card_;
  absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kNew;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
  uint64_t channel_ ABSL_GUARDED_BY(mu_) = 0;  // Of `connection_`.
  std::map<uint64_t, std::shared_ptr<Fetch>> fetches_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, std::shared_ptr<SharedMemory>> segments_
      ABSL_GUARDED_BY(mu_);
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_CHUNK_CLIENT_H_
