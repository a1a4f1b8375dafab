// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Defines a chunk: bytes that one member of a collective group posts under a
// key in its BufRendezvous, and another one takes, once.

#ifndef TF_FUSE_CC_CHANNEL_CHUNK_H_
#define TF_FUSE_CC_CHANNEL_CHUNK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tf_fuse {

// Which chunk.
struct ChunkKey {
  int64_t step_id = 0;
  std::string key;
  // Of the producer.
  std::string device;
  uint64_t device_incarnation = 0;
  uint64_t bytes = 0;
  // What is executed and what the consumer (its device) put in, if that is to
  // be compared with what the producer does.
  std::string collective;
  std::string operand;
  std::string consumer;
  // Not 0: a parcel of that number and size, and nothing else is looked at.
  uint64_t parcel = 0;
};

// A chunk that can be read where it lies, until the loan ends. Moved, never
// copied.
class ChunkLoan {
 public:
  ChunkLoan() = default;
  ChunkLoan(const char* data, std::function<void()> give_back,
            std::function<bool()> intact = nullptr)
      : data_(data),
        give_back_(std::move(give_back)),
        intact_(std::move(intact)) {}
  ChunkLoan(ChunkLoan&& other) noexcept { *this = std::move(other); }
  ChunkLoan& operator=(ChunkLoan&& other) noexcept {
    GiveBack();
    data_ = std::exchange(other.data_, nullptr);
    give_back_ = std::exchange(other.give_back_, nullptr);
    intact_ = std::exchange(other.intact_, nullptr);
    return *this;
  }
  ~ChunkLoan() { GiveBack(); }

  const char* data() const { return data_; }
  // Whether what was read so far are the bytes that were lent. Ask after
  // reading, before the result is used: when its channel is lost a producer
  // uses the memory for others, while this one still reads.
  bool intact() const { return intact_ == nullptr || intact_(); }
  void GiveBack() {
    data_ = nullptr;
    if (give_back_ != nullptr) std::exchange(give_back_, nullptr)();
  }

 private:
  const char* data_ = nullptr;
  std::function<void()> give_back_;
  std::function<bool()> intact_;
};

// Of a loan that is not intact.
inline absl::Status LostLoanError() {
  return absl::UnavailableError(
      "the data channel was lost while its bytes were read in shared memory");
}

using ChunkDone = std::function<void(const absl::Status&)>;
using LoanDone = std::function<void(absl::StatusOr<ChunkLoan>)>;

// A request under way. When Cancel() returns the caller may still be called
// back, once, soon.
class ChunkCall {
 public:
  virtual ~ChunkCall() = default;
  virtual void Cancel(const absl::Status& why) = 0;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_CHUNK_H_
