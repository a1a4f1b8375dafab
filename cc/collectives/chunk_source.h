// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The tasks of this process that post chunks, as data channels and RPCs find
// them.

#ifndef TF_FUSE_CC_COLLECTIVES_CHUNK_SOURCE_H_
#define TF_FUSE_CC_COLLECTIVES_CHUNK_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "collectives/chunk.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/collective.h"

namespace tf_fuse {

// A chunk that was posted: it stays as it is until `done` is called.
struct PostedChunk {
  const char* data = nullptr;
  std::function<void()> done;
  // In place of `data`, of bytes that do not lie in one piece: copies `bytes`
  // of them from `begin` on. Several threads may do so at once.
  std::function<void(uint64_t begin, uint64_t bytes, char* to)> read;
};

using PostedDone = std::function<void(absl::StatusOr<PostedChunk>)>;

class ChunkSource {
 public:
  explicit ChunkSource(tensorflow::CollectiveExecutorMgrInterface* manager)
      : manager_(manager) {}

  // Calls `done` when the chunk is posted, the step is aborted, or
  // `cancellation` is cancelled, which lives until then. Errors: those of
  // BufRendezvous; InvalidArgument if the chunk has another size; Unavailable
  // when the task has ended.
  void Take(const ChunkKey& key, tensorflow::CancellationManager* cancellation,
            PostedDone done);

  // The task ends: returns when nobody uses its manager any more.
  void End();

  // Makes tasks known by their tokens (PeerCard::task_token).
  static void Register(uint64_t token, std::shared_ptr<ChunkSource> source);
  static void Unregister(uint64_t token);
  static std::shared_ptr<ChunkSource> Find(uint64_t token);

 private:
  tensorflow::CollectiveExecutorMgrInterface* const manager_;
  absl::Mutex mu_;
  int users_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_CHUNK_SOURCE_H_
