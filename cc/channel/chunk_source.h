// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Lists the tasks of this process that post chunks, so that data channels and
// RPCs find them.

#ifndef TF_FUSE_CC_CHANNEL_CHUNK_SOURCE_H_
#define TF_FUSE_CC_CHANNEL_CHUNK_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "channel/chunk.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tf_fuse {

// A chunk that was posted: its bytes do not change until `done` is called.
struct PostedChunk {
  const char* data = nullptr;
  std::function<void()> done;
  // In place of `data`, of bytes that do not lie in one piece: copies `bytes`
  // of them from `begin` on. Several threads may do so at once.
  std::function<void(uint64_t begin, uint64_t bytes, char* to)> read;
};

using PostedDone = std::function<void(absl::StatusOr<PostedChunk>)>;

// A task.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  // Calls `done` when the chunk is posted, or with an error. `cancellation`
  // lives until then.
  virtual void Take(const ChunkKey& key,
                    tensorflow::CancellationManager* cancellation,
                    PostedDone done) = 0;

  // Makes tasks known by their tokens (PeerCard::task_token).
  static void Register(uint64_t token, std::shared_ptr<ChunkSource> source);
  static void Unregister(uint64_t token);
  static std::shared_ptr<ChunkSource> Find(uint64_t token);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_CHUNK_SOURCE_H_
