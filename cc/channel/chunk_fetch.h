// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Receives one chunk over a data channel, for its consumer.

#ifndef TF_FUSE_CC_CHANNEL_CHUNK_FETCH_H_
#define TF_FUSE_CC_CHANNEL_CHUNK_FETCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "channel/chunk.h"
#include "channel/shared_memory/mapping.h"
#include "channel/socket/connection.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

// The client that a fetch belongs to.
class FetchOwner {
 public:
  virtual ~FetchOwner() = default;
  virtual void Forget(uint64_t call) = 0;
  // Shared memory that the producer has sent; null if it has not.
  virtual std::shared_ptr<SharedMemory> SegmentOf(uint32_t id) = 0;
  // Returns a block of shared memory to the producer.
  virtual void GiveBack(uint64_t lease,
                        const std::shared_ptr<Connection>& lender) = 0;
};

class Fetch : public ChunkCall, public std::enable_shared_from_this<Fetch> {
 public:
  // Into memory of the caller.
  Fetch(std::shared_ptr<FetchOwner> owner, ChunkKey key, uint64_t task_token,
        char* destination, ChunkDone done, std::function<void()> no_way);
  // As a loan.
  Fetch(std::shared_ptr<FetchOwner> owner, ChunkKey key, uint64_t task_token,
        LoanDone done, std::function<void()> no_way);

  void Cancel(const absl::Status& why) override;

  // The rest is for the owner.

  void set_call(uint64_t call) { call_ = call; }
  uint64_t call() const { return call_; }
  v1::ChannelMessage Request() const;
  // The connection that the request went by; false if it was cancelled before.
  bool SentBy(const std::shared_ptr<Connection>& connection);
  void NoWay();
  void Fail(const absl::Status& status);
  // Where bytes that come with an answer go. Errors: DataLoss.
  absl::StatusOr<char*> DestinationOf(const v1::ChunkAnswer& answer,
                                      uint64_t bytes);
  absl::Status OnAnswer(const v1::ChunkAnswer& answer, uint64_t bytes);

 private:
  struct FreeMemory {
    void operator()(char* memory) const;
  };

  absl::Status CheckRange(uint64_t offset, uint64_t bytes) const;
  void CountBytes(bool is_unix, uint64_t bytes) const;
  absl::Status OnShared(const v1::ChunkAnswer& answer);
  void Copy(const std::shared_ptr<SharedMemory>& memory,
            const v1::ChunkAnswer& answer);
  // Notes that `bytes` have come, and perhaps that all have.
  void Came(uint64_t bytes);
  // Calls back if it is time. The lock is not held.
  void MaybeFinish();

  const std::shared_ptr<FetchOwner> owner_;
  const ChunkKey key_;
  const uint64_t task_token_;
  char* const destination_;  // Null: a loan.
  uint64_t call_ = 0;

  absl::Mutex mu_;
  ChunkDone done_ ABSL_GUARDED_BY(mu_);
  LoanDone loan_done_ ABSL_GUARDED_BY(mu_);
  std::function<void()> no_way_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<char, FreeMemory> own_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  ChunkLoan loan_ ABSL_GUARDED_BY(mu_);
  uint64_t came_ ABSL_GUARDED_BY(mu_) = 0;
  int copies_ ABSL_GUARDED_BY(mu_) = 0;
  // Bytes are being read into its memory, which stays until they have come.
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;     // Nothing more is awaited.
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Called back.
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_CHUNK_FETCH_H_
