// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The data channels to the tasks that send to this process: by them large
// frames come.

#ifndef TF_FUSE_CC_TRANSPORT_PEERS_PEER_CHANNELS_H_
#define TF_FUSE_CC_TRANSPORT_PEERS_PEER_CHANNELS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "channel/chunk_client.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

class PeerChannels {
 public:
  struct Channel {
    std::shared_ptr<ChunkClient> client;
    uint64_t number = 0;  // 0: there is none now.
  };

  // That to a task. One that restarts has a new incarnation.
  Channel Find(const std::string& task, uint64_t incarnation);

  // A large frame has come over gRPC: opens a channel for those that follow, in
  // the background, unless that was tried. `workers` lead to the task; `device`
  // takes its answer.
  void Open(const std::string& task, uint64_t incarnation,
            std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
            tensorflow::Device* device);

  static PeerChannels* Get();

 private:
  using Key = std::pair<std::string, uint64_t>;

  void OnCard(const Key& key, const absl::Status& status,
              const tensorflow::Tensor& frame);

  // So that who has no channels does not look for one.
  std::atomic<bool> any_{false};
  absl::Mutex mu_;
  // Null: there is none, or not yet.
  std::map<Key, std::shared_ptr<ChunkClient>> clients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_PEERS_PEER_CHANNELS_H_
