// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/remote_access/awaited_members.h"

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

namespace tf_fuse {

namespace {

constexpr char kQuestion[] = ":tf_fuse:waits:";

struct Waits {
  absl::Mutex mu;
  // By collective and device.
  std::multimap<std::pair<std::string, std::string>,
                std::function<std::set<int>()>>
      late ABSL_GUARDED_BY(mu);
};

Waits* All() {
  static Waits* waits = new Waits;
  return waits;
}

std::pair<std::string, std::string> Key(absl::string_view collective,
                                        const std::string& device) {
  if (!absl::ConsumeSuffix(&collective, kSumsStage)) {
    absl::ConsumeSuffix(&collective, kGatherStage);
  }
  return {std::string(collective), device};
}

}  // namespace

std::shared_ptr<void> RegisterWaits(const std::string& collective,
                                    const std::string& device,
                                    std::function<std::set<int>()> late) {
  absl::MutexLock lock(&All()->mu);
  const auto own =
      All()->late.emplace(Key(collective, device), std::move(late));
  return std::shared_ptr<void>(nullptr, [own](void*) {
    absl::MutexLock lock(&All()->mu);
    All()->late.erase(own);
  });
}

std::string WaitsKey(const std::string& collective, int who, uint64_t number) {
  return absl::StrCat(collective, kQuestion, who, ":", number);
}

bool AnswerWaits(const ChunkKey& key, const PostedDone& done) {
  const size_t end = key.key.rfind(kQuestion);
  if (end == std::string::npos || key.bytes != kWaitsBytes) return false;
  auto answer = std::make_shared<std::string>(kWaitsBytes, '\0');
  {
    absl::MutexLock lock(&All()->mu);
    const auto [first, last] =
        All()->late.equal_range(Key(key.key.substr(0, end), key.device));
    if (first == last) return false;
    for (auto own = first; own != last; ++own) {
      for (int member : own->second()) {
        if (member < static_cast<int>(kWaitsBytes)) (*answer)[member] = 1;
      }
    }
  }
  const char* const data = answer->data();
  done(PostedChunk{data, [answer] {}, /*read=*/nullptr});
  return true;
}

std::set<int> WaitsIn(const char* answer) {
  std::set<int> members;
  for (int i = 0; i < static_cast<int>(kWaitsBytes); ++i) {
    if (answer[i] != 0) members.insert(i);
  }
  return members;
}

}  // namespace tf_fuse
