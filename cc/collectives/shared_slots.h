// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Memory that this process lends to others of its host: slots of one size,
// taken and given back by data channels. Slots are used again and again, so
// they stay in the processor's caches and their pages are made once.

#ifndef TF_FUSE_CC_COLLECTIVES_SHARED_SLOTS_H_
#define TF_FUSE_CC_COLLECTIVES_SHARED_SLOTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "collectives/shared_memory.h"

namespace tf_fuse {

// Larger pieces leave the caches before the other side reads them; smaller ones
// cost more messages. By benchmarks/collectives.py.
inline constexpr uint64_t kSlotBytes = 1 << 20;

class SharedSlots {
 public:
  struct Slot {
    char* data = nullptr;
    std::shared_ptr<SharedMemory> memory;
    uint32_t segment = 0;
    uint64_t offset = 0;
  };

  static SharedSlots* Get();

  // True, and `slot`; or false, and `when_free` is called once when there may
  // be one. When memory is exhausted and no slot will come back, it is called
  // at once with false.
  bool Take(Slot* slot, std::function<void(bool may_come)> when_free);
  void Give(const Slot& slot);

 private:
  bool Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  std::vector<Slot> free_ ABSL_GUARDED_BY(mu_);
  std::vector<std::function<void(bool)>> waiting_ ABSL_GUARDED_BY(mu_);
  uint64_t slots_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t segments_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_SHARED_SLOTS_H_
