// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/parcel.h"

#include <utility>

#include "base/metrics.h"

namespace tf_fuse {

Parcel::Parcel(uint64_t bytes, PostedChunk content)
    : bytes_(bytes), content_(std::move(content)) {
  Metrics::Get()->lent_chunks.fetch_add(1);
}

Parcel::~Parcel() { Drop(absl::UnavailableError("the parcel is gone")); }

bool Parcel::gone() {
  absl::MutexLock lock(&mu_);
  return !gone_.ok();
}

absl::StatusOr<PostedChunk> Parcel::Take() {
  PostedChunk content;
  {
    absl::MutexLock lock(&mu_);
    if (!gone_.ok()) return gone_;
    gone_ = absl::UnavailableError("the parcel was taken before");
    content = std::exchange(content_, PostedChunk());
  }
  Metrics::Get()->lent_chunks.fetch_sub(1);
  return content;
}

void Parcel::Drop(const absl::Status& why) {
  PostedChunk content;
  {
    absl::MutexLock lock(&mu_);
    if (!gone_.ok()) return;
    gone_ = why;
    content = std::exchange(content_, PostedChunk());
  }
  Metrics::Get()->lent_chunks.fetch_sub(1);
  content.done();
}

}  // namespace tf_fuse
