// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// ConsumerConnection: how a chunk gets to the consumer, through the socket or
// through blocks of shared memory.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/metrics.h"
#include "base/recycled_memory.h"
#include "channel/consumer_connection.h"
#include "channel/served_chunk.h"
#include "channel/shared_memory/copy_threads.h"

namespace tf_fuse {

namespace {

// Blocks that one chunk has under way: one is filled while others are read.
constexpr int kBlocksPerChunk = 3;
// A consumer may stop and keep what it has: this part of all blocks, and others
// go on with the rest. Beyond it bytes go through the socket.
constexpr uint64_t kConsumersAtLeast = 4;

}  // namespace

void ConsumerConnection::SendError(uint64_t call, const absl::Status& status) {
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

void ConsumerConnection::SendDirectly(
    const std::shared_ptr<ServedChunk>& chunk) {
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
  connection_->Send(message, {absl::string_view(data, bytes)},
                    [chunk, whole](const absl::Status& status) {});
}

void ConsumerConnection::SendParts(const std::shared_ptr<ServedChunk>& chunk) {
  // On another thread: this one is the producer's, or the channel's.
  ScheduleCopy([self = shared_from_this(), chunk] {
    while (self->SendNextPart(chunk)) {
    }
  });
}

bool ConsumerConnection::SendNextPart(
    const std::shared_ptr<ServedChunk>& chunk) {
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return false;
  }
  {
    absl::MutexLock lock(&chunk->mu);
    if (chunk->next >= chunk->bytes || chunk->blocks >= kBlocksPerChunk) {
      return false;
    }
    ++chunk->blocks;
  }
  SharedBlocks::Block block;
  if (TakeBlock(&block)) {
    SendShared(chunk, block);
    return true;
  }
  {
    // When one of its own comes back it goes on.
    absl::MutexLock lock(&chunk->mu);
    if (--chunk->blocks > 0) return false;
  }
  SendDirectly(chunk);
  return false;
}

bool ConsumerConnection::TakeBlock(SharedBlocks::Block* block) {
  const uint64_t most =
      MaxSharedMemoryBytes() / kBlockBytes / kConsumersAtLeast;
  absl::MutexLock lock(&mu_);
  if (blocks_ >= std::max<uint64_t>(most, 1)) return false;
  if (!SharedBlocks::Get()->Take(block)) return false;
  ++blocks_;
  return true;
}

void ConsumerConnection::GiveBlock(const SharedBlocks::Block& block) {
  {
    absl::MutexLock lock(&mu_);
    --blocks_;
  }
  SharedBlocks::Get()->Give(block);
}

void ConsumerConnection::SendShared(const std::shared_ptr<ServedChunk>& chunk,
                                    const SharedBlocks::Block& block) {
  uint64_t begin;
  uint64_t bytes;
  {
    absl::MutexLock lock(&chunk->mu);
    begin = chunk->next;
    bytes = std::min(kBlockBytes, chunk->bytes - begin);
    chunk->next += bytes;
  }
  if (bytes == 0) return GiveBlock(block);
  chunk->Read(begin, bytes, block.data);
  if (!chunk->is_parcel) {
    Metrics::Get()->collective_copied_bytes.fetch_add(bytes);
  }
  SendSegment(block);
  v1::ChannelMessage message;
  v1::ChunkAnswer* answer = message.mutable_answer();
  answer->set_call(chunk->call);
  answer->set_offset(begin);
  answer->set_segment(block.segment);
  answer->set_segment_offset(block.offset);
  answer->set_segment_bytes(bytes);
  answer->set_last(begin + bytes == chunk->bytes);
  answer->set_lease(block.lease);
  answer->set_stamp_offset(block.stamp_offset);
  if (!Lend(block, answer->last() ? nullptr : chunk)) return GiveBlock(block);
  connection_->Send(message);
}

void ConsumerConnection::SendSegment(const SharedBlocks::Block& block) {
  {
    absl::MutexLock lock(&mu_);
    if (sent_segments_.count(block.segment) > 0) return;
  }
  v1::ChannelMessage message;
  message.mutable_segment()->set_id(block.segment);
  message.mutable_segment()->set_bytes(block.memory->size());
  connection_->Send(message, {}, nullptr, block.memory->fd());
  // Only now: what names the segment must come after it. Two threads may send
  // it twice, which does no harm.
  absl::MutexLock lock(&mu_);
  sent_segments_.insert(block.segment);
}

bool ConsumerConnection::Lend(const SharedBlocks::Block& block,
                              std::shared_ptr<ServedChunk> chunk) {
  absl::MutexLock lock(&mu_);
  if (closed_) return false;
  Metrics::Get()->lent_chunks.fetch_add(1);
  loans_[block.lease] = {block, std::move(chunk)};
  return true;
}

void ConsumerConnection::TakeBack(uint64_t lease) {
  Loan loan;
  {
    absl::MutexLock lock(&mu_);
    auto found = loans_.find(lease);
    if (found == loans_.end()) return;
    loan = std::move(found->second);
    loans_.erase(found);
  }
  Metrics::Get()->lent_chunks.fetch_sub(1);
  GiveBlock(loan.block);
  if (loan.chunk == nullptr) return;
  {
    absl::MutexLock lock(&loan.chunk->mu);
    --loan.chunk->blocks;
  }
  SendParts(loan.chunk);
}

}  // namespace tf_fuse
