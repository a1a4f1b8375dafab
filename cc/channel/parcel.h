// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Holds bytes at a data channel until their consumer asks for them. Unlike a
// chunk they are there before they are asked for.

#ifndef TF_FUSE_CC_CHANNEL_PARCEL_H_
#define TF_FUSE_CC_CHANNEL_PARCEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "channel/chunk_source.h"

namespace tf_fuse {

class Parcel {
 public:
  Parcel(uint64_t bytes, PostedChunk content);
  ~Parcel();
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  uint64_t bytes() const { return bytes_; }
  // Taken or dropped.
  bool gone();
  // Gives the bytes away. Errors: what it was dropped with.
  absl::StatusOr<PostedChunk> Take();
  // Lets go of the bytes, unless they were taken; who asks for them then is
  // answered with `why`.
  void Drop(const absl::Status& why);

 private:
  const uint64_t bytes_;
  absl::Mutex mu_;
  PostedChunk content_ ABSL_GUARDED_BY(mu_);
  absl::Status gone_ ABSL_GUARDED_BY(mu_);  // OK: it is there.
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_PARCEL_H_
