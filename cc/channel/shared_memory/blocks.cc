// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/shared_memory/blocks.h"

#include <utility>

#include "base/limits.h"
#include "base/metrics.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

namespace {

constexpr uint64_t kBlocksPerSegment = 8;
// After the blocks: a line of the cache for each stamp.
constexpr uint64_t kStampsBytes = 4096;
constexpr uint64_t kStampStride = 64;

}  // namespace

SharedBlocks* SharedBlocks::Get() {
  // Peers may still read when the process ends.
  static SharedBlocks* blocks = new SharedBlocks;
  return blocks;
}

bool SharedBlocks::Take(Block* block) {
  absl::MutexLock lock(&mu_);
  if (free_.empty() && !Grow()) return false;
  *block = std::move(free_.back());
  free_.pop_back();
  block->lease = ++leases_;
  block->memory->Stamp(block->stamp_offset, block->lease);
  return true;
}

bool SharedBlocks::Grow() {
  constexpr uint64_t kBytes = kBlocksPerSegment * kBlockBytes;
  if (blocks_ * kBlockBytes + kBytes > MaxSharedMemoryBytes()) return false;
  absl::StatusOr<std::unique_ptr<SharedMemory>> memory =
      SharedMemory::Create(kBytes + kStampsBytes);
  if (!memory.ok()) {
    LOG_EVERY_N_SEC(WARNING, 60) << "tf_fuse: " << memory.status();
    return false;
  }
  const std::shared_ptr<SharedMemory> shared = *std::move(memory);
  Metrics::Get()->shared_memory_bytes.fetch_add(kBytes);
  ++segments_;
  blocks_ += kBlocksPerSegment;
  for (uint64_t i = kBlocksPerSegment; i > 0; --i) {
    const uint64_t offset = (i - 1) * kBlockBytes;
    free_.push_back({shared->data() + offset, shared, segments_, offset,
                     kBytes + (i - 1) * kStampStride, /*lease=*/0});
  }
  return true;
}

void SharedBlocks::Give(const Block& block) {
  absl::MutexLock lock(&mu_);
  free_.push_back(block);
}

}  // namespace tf_fuse
