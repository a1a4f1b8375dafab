// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Takes chunks from another process over a data channel.

#ifndef TF_FUSE_CC_CHANNEL_CHUNK_CLIENT_H_
#define TF_FUSE_CC_CHANNEL_CHUNK_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "channel/calls/call_client.h"
#include "channel/chunk.h"
#include "channel/chunk_fetch.h"
#include "channel/shared_memory/mapping.h"
#include "channel/socket/connection.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

// One process that chunks are taken from.
class ChunkClient : public FetchOwner,
                    public std::enable_shared_from_this<ChunkClient> {
 public:
  // That of the process that wrote the card; null if no data channel leads
  // there, as far as is known. Connects in the background.
  static std::shared_ptr<ChunkClient> To(const v1::PeerCard& card);
  // Another one, for calls; likewise. Its failures are not logged: tasks of a
  // job end, and others take their place.
  static std::shared_ptr<ChunkClient> ForCalls(const v1::PeerCard& card);

  // After an attempt to connect that has failed the next one is made when
  // `retry_after` has passed, in the background. The first failure is logged,
  // unless `quiet`.
  explicit ChunkClient(v1::PeerCard card,
                       absl::Duration retry_after = kRetryAfter,
                       bool quiet = false)
      : card_(std::move(card)), retry_after_(retry_after), quiet_(quiet) {}

  // The number that the server gave the connection, if it is open now; else 0,
  // and it is opened in the background, unless that has just failed.
  uint64_t Channel();
  // What makes calls there, if it is open now; else null, and it is
  // opened likewise.
  std::shared_ptr<CallClient> Calls();

  // Takes a chunk into `destination`, which nobody else writes until `done` is
  // called, on any thread. `no_way` is called instead, on any thread, if there
  // is no connection and the attempt to make one fails or takes long; then
  // nothing was asked for.
  std::shared_ptr<ChunkCall> Take(const ChunkKey& key, uint64_t task_token,
                                  char* destination, ChunkDone done,
                                  std::function<void()> no_way);
  // The same of a chunk of kBlockBytes at most, which is not copied if it lies
  // in shared memory.
  std::shared_ptr<ChunkCall> Borrow(const ChunkKey& key, uint64_t task_token,
                                    LoanDone done,
                                    std::function<void()> no_way);

 private:
  static constexpr absl::Duration kRetryAfter = absl::Seconds(30);
  friend class ClientReceiver;
  // What comes of a connection whose server has not greeted yet.
  struct Greeting {
    bool over = false;         // Guarded by the client's lock.
    absl::Status status;       // Likewise.
    absl::Notification ended;  // After `over`, unless its waiter gave up.
  };

  std::shared_ptr<ChunkCall> Start(std::shared_ptr<Fetch> fetch);
  // Whether the caller is to schedule Connect().
  bool BeginToConnect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ScheduleConnect();
  // Tries all ways, for some seconds each.
  void Connect();
  // Returns OK once the server has greeted.
  absl::Status ConnectBy(const std::string& address);
  // False if nobody waits for it any more.
  bool Opened(Greeting* greeting, std::shared_ptr<Connection> connection,
              std::shared_ptr<CallClient> call_client, uint64_t channel);
  void Closed(Greeting* greeting, const Connection* connection,
              const absl::Status& status);
  void NoWay(const absl::Status& status);

  std::shared_ptr<Fetch> Find(uint64_t call);
  void Forget(uint64_t call) override;
  absl::Status AddSegment(const v1::Segment& segment, int fd);
  std::shared_ptr<SharedMemory> SegmentOf(uint32_t id) override;
  void GiveBack(uint64_t lease,
                const std::shared_ptr<Connection>& lender) override;

  const v1::PeerCard card_;
  const absl::Duration retry_after_;
  const bool quiet_;
  absl::Mutex mu_;
  // There is one attempt at a time. Requests wait for it, unless the one before
  // has failed: then they take another way until it succeeds.
  bool connecting_ ABSL_GUARDED_BY(mu_) = false;
  bool has_failed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time next_attempt_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);  // If open.
  uint64_t channel_ ABSL_GUARDED_BY(mu_) = 0;  // Of `connection_`.
  std::shared_ptr<CallClient> call_client_ ABSL_GUARDED_BY(mu_);  // Likewise.
  std::map<uint64_t, std::shared_ptr<Fetch>> fetches_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, std::shared_ptr<SharedMemory>> segments_
      ABSL_GUARDED_BY(mu_);
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_CHUNK_CLIENT_H_
