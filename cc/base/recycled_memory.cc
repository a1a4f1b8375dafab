// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "base/recycled_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace tf_fuse {

namespace {

constexpr size_t kHugePage = 2 << 20;
// Smaller blocks are used again by malloc (its DEFAULT_MMAP_THRESHOLD_MAX), and
// have their pages.
constexpr size_t kLeastBytes = 32 << 20;
constexpr size_t kAlignment = 64;
// What is kept for later.
constexpr size_t kMaxKeptBytes = 64 << 20;

struct Kept {
  absl::Mutex mu;
  std::vector<std::pair<size_t, char*>> buffers ABSL_GUARDED_BY(mu);
  size_t bytes ABSL_GUARDED_BY(mu) = 0;
};

Kept* AllKept() {
  static Kept* kept = new Kept;
  return kept;
}

void Keep(size_t bytes, char* data) {
  {
    Kept* const kept = AllKept();
    absl::MutexLock lock(&kept->mu);
    if (kept->bytes + bytes <= kMaxKeptBytes) {
      kept->bytes += bytes;
      kept->buffers.emplace_back(bytes, data);
      return;
    }
  }
  std::free(data);
}

}  // namespace

void AdviseHugePages(void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
  if (bytes < kLeastBytes || last <= first) return;
  // Advice: a system may ignore it, and nothing else changes.
  (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

std::shared_ptr<char> RecycledBuffer(size_t bytes) {
  const size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  char* data = nullptr;
  {
    Kept* const kept = AllKept();
    absl::MutexLock lock(&kept->mu);
    for (size_t i = kept->buffers.size(); i > 0; --i) {
      if (kept->buffers[i - 1].first != size) continue;
      data = kept->buffers[i - 1].second;
      kept->bytes -= size;
      kept->buffers.erase(kept->buffers.begin() +
                          static_cast<std::ptrdiff_t>(i - 1));
      break;
    }
  }
  if (data == nullptr) {
    data = static_cast<char*>(std::aligned_alloc(kAlignment, size));
    if (data == nullptr) return nullptr;
    AdviseHugePages(data, size);
  }
  return std::shared_ptr<char>(data, [size](char* p) { Keep(size, p); });
}

}  // namespace tf_fuse
