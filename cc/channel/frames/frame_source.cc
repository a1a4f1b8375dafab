// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/frames/frame_source.h"

#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "channel/peer_card.h"

namespace tf_fuse {

namespace {

struct FrameSources {
  absl::Mutex mu;
  std::map<uint64_t, FrameSource*> by_token ABSL_GUARDED_BY(mu);
};

FrameSources* AllFrameSources() {
  static FrameSources* sources = new FrameSources;
  return sources;
}

}  // namespace

uint64_t FrameSource::Register(FrameSource* source) {
  const uint64_t token = RandomNumber();
  if (token == 0) return 0;
  absl::MutexLock lock(&AllFrameSources()->mu);
  AllFrameSources()->by_token[token] = source;
  return token;
}

void FrameSource::Unregister(uint64_t token) {
  absl::MutexLock lock(&AllFrameSources()->mu);
  AllFrameSources()->by_token.erase(token);
}

FrameSource* FrameSource::Find(uint64_t token) {
  absl::MutexLock lock(&AllFrameSources()->mu);
  auto found = AllFrameSources()->by_token.find(token);
  return found == AllFrameSources()->by_token.end() ? nullptr : found->second;
}

}  // namespace tf_fuse
