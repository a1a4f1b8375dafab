// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Lends memory to other processes of this host in blocks of one size, which
// data channels take and give back. Blocks are used again and again, so they
// stay in the processor's caches and their pages are made once.

#ifndef TF_FUSE_CC_CHANNEL_SHARED_MEMORY_BLOCKS_H_
#define TF_FUSE_CC_CHANNEL_SHARED_MEMORY_BLOCKS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "channel/shared_memory/mapping.h"

namespace tf_fuse {

// Larger pieces may leave the caches before the other side reads them; smaller
// ones cost more messages.
inline constexpr uint64_t kBlockBytes = 1 << 20;

class SharedBlocks {
 public:
  struct Block {
    char* data = nullptr;
    std::shared_ptr<SharedMemory> memory;
    uint32_t segment = 0;
    uint64_t offset = 0;
    uint64_t stamp_offset = 0;
    // Another one each time that the block is taken, and its stamp.
    uint64_t lease = 0;
  };

  static SharedBlocks* Get();

  // False if none is free: whoever has them may never give them back.
  bool Take(Block* block);
  // Whoever still reads the block finds another stamp from the next Take() on.
  void Give(const Block& block);

 private:
  bool Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  std::vector<Block> free_ ABSL_GUARDED_BY(mu_);
  uint64_t blocks_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t segments_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t leases_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_SHARED_MEMORY_BLOCKS_H_
