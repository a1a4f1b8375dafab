// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/shared_memory/slots.h"

#include <utility>

#include "base/limits.h"
#include "base/metrics.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

namespace {

constexpr uint64_t kSlotsPerSegment = 8;
// After the slots: a line of the cache for each stamp.
constexpr uint64_t kStampsBytes = 4096;
constexpr uint64_t kStampStride = 64;

}  // namespace

SharedSlots* SharedSlots::Get() {
  // Peers may still read when the process ends.
  static SharedSlots* slots = new SharedSlots;
  return slots;
}

bool SharedSlots::Take(Slot* slot) {
  absl::MutexLock lock(&mu_);
  if (free_.empty() && !Grow()) return false;
  *slot = std::move(free_.back());
  free_.pop_back();
  slot->lease = ++leases_;
  slot->memory->Stamp(slot->stamp_offset, slot->lease);
  return true;
}

bool SharedSlots::Grow() {
  constexpr uint64_t kBytes = kSlotsPerSegment * kSlotBytes;
  if (slots_ * kSlotBytes + kBytes > MaxSharedMemoryBytes()) return false;
  absl::StatusOr<std::unique_ptr<SharedMemory>> memory =
      SharedMemory::Create(kBytes + kStampsBytes);
  if (!memory.ok()) {
    LOG_EVERY_N_SEC(WARNING, 60) << "tf_fuse: " << memory.status();
    return false;
  }
  const std::shared_ptr<SharedMemory> shared = *std::move(memory);
  Metrics::Get()->shared_memory_bytes.fetch_add(kBytes);
  ++segments_;
  slots_ += kSlotsPerSegment;
  for (uint64_t i = kSlotsPerSegment; i > 0; --i) {
    const uint64_t offset = (i - 1) * kSlotBytes;
    free_.push_back({shared->data() + offset, shared, segments_, offset,
                     kBytes + (i - 1) * kStampStride, /*lease=*/0});
  }
  return true;
}

void SharedSlots::Give(const Slot& slot) {
  absl::MutexLock lock(&mu_);
  free_.push_back(slot);
}

}  // namespace tf_fuse
