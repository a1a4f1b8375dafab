// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/chunk_fetch.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/metrics.h"
#include "channel/shared_memory/blocks.h"
#include "channel/shared_memory/copy_threads.h"

namespace tf_fuse {

namespace {

constexpr size_t kTensorAlignment = 64;  // Of tensors.
constexpr uint64_t kStampBytes = sizeof(uint64_t);

}  // namespace

void Fetch::FreeMemory::operator()(char* memory) const { std::free(memory); }

Fetch::Fetch(std::shared_ptr<FetchOwner> owner, ChunkKey key,
             uint64_t task_token, char* destination, ChunkDone done,
             std::function<void()> no_way)
    : owner_(std::move(owner)),
      key_(std::move(key)),
      task_token_(task_token),
      destination_(destination),
      done_(std::move(done)),
      no_way_(std::move(no_way)) {}

Fetch::Fetch(std::shared_ptr<FetchOwner> owner, ChunkKey key,
             uint64_t task_token, LoanDone done, std::function<void()> no_way)
    : owner_(std::move(owner)),
      key_(std::move(key)),
      task_token_(task_token),
      destination_(nullptr),
      loan_done_(std::move(done)),
      no_way_(std::move(no_way)) {}

v1::ChannelMessage Fetch::Request() const {
  v1::ChannelMessage message;
  v1::ChunkRequest* request = message.mutable_request();
  request->set_call(call_);
  request->set_task_token(task_token_);
  request->set_step_id(key_.step_id);
  request->set_key(key_.key);
  request->set_device(key_.device);
  request->set_device_incarnation(key_.device_incarnation);
  request->set_bytes(key_.bytes);
  request->set_collective(key_.collective);
  request->set_operand(key_.operand);
  request->set_consumer(key_.consumer);
  request->set_parcel(key_.parcel);
  return message;
}

bool Fetch::SentBy(const std::shared_ptr<Connection>& connection) {
  absl::MutexLock lock(&mu_);
  if (ended_) return false;
  connection_ = connection;
  return true;
}

void Fetch::NoWay() {
  std::function<void()> no_way;
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return;
    ended_ = finished_ = true;
    done_ = nullptr;
    loan_done_ = nullptr;
    no_way = std::exchange(no_way_, nullptr);
  }
  no_way();
}

void Fetch::Fail(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return;
    ended_ = true;
    status_ = status;
  }
  MaybeFinish();
}

void Fetch::Cancel(const absl::Status& why) {
  std::shared_ptr<Connection> connection;
  const char* memory = destination_;
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return;
    ended_ = true;
    status_ = why;
    connection = connection_;
    if (own_ != nullptr) memory = own_.get();
  }
  if (connection != nullptr) {
    // (Without the lock: the channel's thread takes both.)
    if (memory != nullptr) connection->Divert(memory, key_.bytes);
    v1::ChannelMessage message;
    message.mutable_cancel()->set_call(call_);
    connection->Send(message);
  }
  owner_->Forget(call_);
  MaybeFinish();
}

absl::Status Fetch::CheckRange(uint64_t offset, uint64_t bytes) const {
  if (offset > key_.bytes || bytes > key_.bytes - offset) {
    return absl::DataLossError(
        absl::StrCat("data channel: the producer sent bytes ", offset, " to ",
                     offset + bytes, " of a chunk of ", key_.bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<char*> Fetch::DestinationOf(const v1::ChunkAnswer& answer,
                                           uint64_t bytes) {
  absl::Status status = CheckRange(answer.offset(), bytes);
  if (!status.ok()) return status;
  absl::MutexLock lock(&mu_);
  if (ended_) return nullptr;
  reading_ = true;
  if (destination_ != nullptr) return destination_ + answer.offset();
  if (own_ == nullptr) {
    const size_t size = (key_.bytes + kTensorAlignment - 1) / kTensorAlignment *
                        kTensorAlignment;
    own_.reset(static_cast<char*>(std::aligned_alloc(kTensorAlignment, size)));
    if (own_ == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for a chunk of ", key_.bytes, " bytes"));
    }
  }
  return own_.get() + answer.offset();
}

absl::Status Fetch::OnAnswer(const v1::ChunkAnswer& answer, uint64_t bytes) {
  {
    absl::MutexLock lock(&mu_);
    reading_ = false;
  }
  if (answer.code() != 0) {
    Fail(absl::Status(CodeOfPeer(answer.code()), answer.text()));
    return absl::OkStatus();
  }
  if (answer.lease() != 0) return OnShared(answer);
  bool is_unix = false;
  {
    absl::MutexLock lock(&mu_);
    is_unix = connection_ != nullptr && connection_->is_unix();
  }
  CountBytes(is_unix, bytes);
  Came(bytes);
  return absl::OkStatus();
}

void Fetch::CountBytes(bool is_unix, uint64_t bytes) const {
  if (key_.parcel != 0) return;  // Of no collective: its receiver counts it.
  (is_unix ? Metrics::Get()->collective_bytes_shm
           : Metrics::Get()->collective_bytes_tcp)
      .fetch_add(static_cast<int64_t>(bytes));
}

absl::Status Fetch::OnShared(const v1::ChunkAnswer& answer) {
  const uint64_t bytes = answer.segment_bytes();
  absl::Status status = CheckRange(answer.offset(), bytes);
  if (!status.ok()) return status;
  const std::shared_ptr<SharedMemory> memory =
      owner_->SegmentOf(answer.segment());
  if (memory == nullptr || answer.segment_offset() > memory->size() ||
      bytes > memory->size() - answer.segment_offset()) {
    return absl::DataLossError(absl::StrCat(
        "data channel: the producer named bytes ", answer.segment_offset(),
        " to ", answer.segment_offset() + bytes, " of segment ",
        answer.segment(), ", which has ",
        memory == nullptr ? 0 : memory->size(), " bytes"));
  }
  const uint64_t stamp = answer.stamp_offset();
  if (stamp % kStampBytes != 0 || memory->size() < kStampBytes ||
      stamp > memory->size() - kStampBytes) {
    return absl::DataLossError(absl::StrCat(
        "data channel: the producer named a stamp at byte ", stamp,
        " of segment ", answer.segment(), ", which has ", memory->size(),
        " bytes; expected a multiple of ", kStampBytes, " within it"));
  }
  const bool is_loan = destination_ == nullptr;
  if (is_loan && bytes != key_.bytes) {
    return absl::DataLossError(absl::StrCat(
        "data channel: the producer lent ", bytes, " bytes of a chunk of ",
        key_.bytes, " bytes; expected all of it"));
  }
  CountBytes(/*is_unix=*/true, bytes);
  std::shared_ptr<Connection> connection;
  bool wanted;
  {
    absl::MutexLock lock(&mu_);
    connection = connection_;
    wanted = !ended_;
    if (wanted && is_loan) {
      loan_ = ChunkLoan(
          memory->data() + answer.segment_offset(),
          [owner = owner_, lease = answer.lease(), memory, connection] {
            owner->GiveBack(lease, connection);
          },
          [memory, stamp, lease = answer.lease()] {
            return memory->HasStamp(stamp, lease);
          });
    } else if (wanted) {
      ++copies_;
    }
  }
  if (!wanted) {
    owner_->GiveBack(answer.lease(), connection);
    return absl::OkStatus();
  }
  if (is_loan) {
    Came(bytes);
    return absl::OkStatus();
  }
  ScheduleCopy([self = shared_from_this(), memory, answer] {
    self->Copy(memory, answer);
  });
  return absl::OkStatus();
}

void Fetch::Copy(const std::shared_ptr<SharedMemory>& memory,
                 const v1::ChunkAnswer& answer) {
  bool wanted;
  std::shared_ptr<Connection> connection;
  {
    absl::MutexLock lock(&mu_);
    wanted = !ended_;
    connection = connection_;
  }
  const uint64_t bytes = answer.segment_bytes();
  bool intact = true;
  if (wanted) {
    std::memcpy(destination_ + answer.offset(),
                memory->data() + answer.segment_offset(), bytes);
    intact = memory->HasStamp(answer.stamp_offset(), answer.lease());
    if (key_.parcel == 0) {
      Metrics::Get()->collective_copied_bytes.fetch_add(bytes);
    }
  }
  owner_->GiveBack(answer.lease(), connection);
  {
    absl::MutexLock lock(&mu_);
    --copies_;
  }
  // The rest may be coming as bytes just now.
  if (!intact) Cancel(LostLoanError());
  Came(bytes);
}

// Parts come, and are copied, in any order: only their bytes tell the end. The
// producer has compared how many there are.
void Fetch::Came(uint64_t bytes) {
  {
    absl::MutexLock lock(&mu_);
    came_ += bytes;
    if (came_ >= key_.bytes && !reading_) ended_ = true;
  }
  MaybeFinish();
}

void Fetch::MaybeFinish() {
  ChunkDone done;
  LoanDone loan_done;
  ChunkLoan loan;
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    if (!ended_ || finished_ || copies_ > 0) return;
    finished_ = true;
    status = status_;
    done = std::exchange(done_, nullptr);
    loan_done = std::exchange(loan_done_, nullptr);
    no_way_ = nullptr;
    connection_ = nullptr;
    loan = std::move(loan_);
    if (status.ok() && own_ != nullptr) {
      char* const memory = own_.release();
      loan = ChunkLoan(memory, [memory] { std::free(memory); });
    }
  }
  owner_->Forget(call_);
  if (done != nullptr) {
    done(status);
  } else if (!status.ok()) {
    loan_done(status);
  } else {
    loan_done(std::move(loan));
  }
}

}  // namespace tf_fuse
