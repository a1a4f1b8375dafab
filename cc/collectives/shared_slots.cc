// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/shared_slots.h"

#include <utility>

#include "tensorflow/core/platform/logging.h"
#include "transport/limits.h"
#include "transport/metrics.h"

namespace tf_fuse {

namespace {

constexpr uint64_t kSlotsPerSegment = 8;

}  // namespace

SharedSlots* SharedSlots::Get() {
  // Peers may still read when the process ends.
  static SharedSlots* slots = new SharedSlots;
  return slots;
}

bool SharedSlots::Take(Slot* slot, std::function<void(bool)> when_free) {
  {
    absl::MutexLock lock(&mu_);
    if (!free_.empty() || Grow()) {
      *slot = std::move(free_.back());
      free_.pop_back();
      return true;
    }
    if (slots_ > 0) {
      waiting_.push_back(std::move(when_free));
      return false;
    }
  }
  when_free(false);
  return false;
}

bool SharedSlots::Grow() {
  constexpr uint64_t kBytes = kSlotsPerSegment * kSlotBytes;
  if (slots_ * kSlotBytes + kBytes > MaxSharedMemoryBytes()) return false;
  absl::StatusOr<std::unique_ptr<SharedMemory>> memory =
      SharedMemory::Create(kBytes);
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
    free_.push_back({shared->data() + offset, shared, segments_, offset});
  }
  return true;
}

void SharedSlots::Give(const Slot& slot) {
  std::vector<std::function<void(bool)>> waiting;
  {
    absl::MutexLock lock(&mu_);
    free_.push_back(slot);
    waiting.swap(waiting_);
  }
  for (const auto& when_free : waiting) when_free(true);
}

}  // namespace tf_fuse
