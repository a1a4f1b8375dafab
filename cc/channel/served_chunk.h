// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Holds a chunk that a producer is sending, until all parts are copied.

#ifndef TF_FUSE_CC_CHANNEL_SERVED_CHUNK_H_
#define TF_FUSE_CC_CHANNEL_SERVED_CHUNK_H_

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "channel/chunk_source.h"

namespace tf_fuse {

class ServedChunk {
 public:
  ServedChunk(uint64_t call, PostedChunk posted, uint64_t bytes, bool is_parcel)
      : call(call),
        bytes(bytes),
        is_parcel(is_parcel),
        posted_(std::move(posted)) {}
  // All parts are copied, or nobody wants them: the producer goes on.
  ~ServedChunk() { posted_.done(); }

  // Null if it does not lie in one piece.
  const char* data() const { return posted_.data; }
  void Read(uint64_t begin, uint64_t size, char* to) const {
    if (posted_.read != nullptr) return posted_.read(begin, size, to);
    std::memcpy(to, posted_.data + begin, size);
  }

  const uint64_t call;
  const uint64_t bytes;
  const bool is_parcel;
  absl::Mutex mu;
  uint64_t next ABSL_GUARDED_BY(mu) = 0;  // What was not taken up yet.
  int blocks ABSL_GUARDED_BY(mu) = 0;     // Under way.

 private:
  const PostedChunk posted_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_SERVED_CHUNK_H_
