// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The data channels to the tasks that send to this process: one by which frames
// are asked for, and one by which large frames come, so that these do not
// delay the others.

#ifndef TF_FUSE_CC_TRANSPORT_PEERS_PEER_CHANNELS_H_
#define TF_FUSE_CC_TRANSPORT_PEERS_PEER_CHANNELS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "channel/chunk_client.h"
#include "channel/frames/frame_client.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

class PeerChannels {
 public:
  struct Channels {
    bool is_known = false;  // Whether Open() was called.
    // Null: there is none now. `frame_token` tells the server which task is
    // meant.
    std::shared_ptr<FrameClient> frames;
    uint64_t frame_token = 0;
    // That of large frames; 0: there is none now.
    std::shared_ptr<ChunkClient> parcels;
    uint64_t parcel_channel = 0;
  };

  // Those to a task. One that restarts has a new incarnation.
  Channels Find(const std::string& task, uint64_t incarnation);

  // The task has sent a frame: opens the channel of frames in the background.
  // `workers` lead to the task; `device` takes its answer.
  void Open(const std::string& task, uint64_t incarnation,
            std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
            tensorflow::Device* device);
  // The task has sent a large frame: opens the channel of those that follow,
  // likewise. Nothing if it has no channels.
  void OpenForLargeFrames(const std::string& task, uint64_t incarnation);

  static PeerChannels* Get();

 private:
  using Key = std::pair<std::string, uint64_t>;
  struct Peer {
    // Null: there is none, or not yet.
    std::shared_ptr<ChunkClient> frames;
    std::shared_ptr<ChunkClient> parcels;
    v1::PeerCard card;
    bool has_sent_large = false;
  };

  void OnCard(const Key& key, const absl::Status& status,
              const tensorflow::Tensor& frame);

  absl::Mutex mu_;
  std::map<Key, Peer> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_PEERS_PEER_CHANNELS_H_
