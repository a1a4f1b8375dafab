// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/chunk_source.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tf_fuse {

namespace {

struct Sources {
  absl::Mutex mu;
  std::map<uint64_t, std::shared_ptr<ChunkSource>> by_token ABSL_GUARDED_BY(mu);
};

Sources* AllSources() {
  static Sources* sources = new Sources;
  return sources;
}

}  // namespace

void ChunkSource::Register(uint64_t token,
                           std::shared_ptr<ChunkSource> source) {
  absl::MutexLock lock(&AllSources()->mu);
  AllSources()->by_token[token] = std::move(source);
}

void ChunkSource::Unregister(uint64_t token) {
  absl::MutexLock lock(&AllSources()->mu);
  AllSources()->by_token.erase(token);
}

std::shared_ptr<ChunkSource> ChunkSource::Find(uint64_t token) {
  absl::MutexLock lock(&AllSources()->mu);
  auto found = AllSources()->by_token.find(token);
  return found == AllSources()->by_token.end() ? nullptr : found->second;
}

}  // namespace tf_fuse
