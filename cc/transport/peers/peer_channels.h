// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The data channels to the tasks that send to this process: one for calls, and
// one each for single tensors and for large frames, which do not delay them.

#ifndef TF_FUSE_CC_TRANSPORT_PEERS_PEER_CHANNELS_H_
#define TF_FUSE_CC_TRANSPORT_PEERS_PEER_CHANNELS_H_

#include <atomic>
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
#include "transport/peers/peer_call.h"

namespace tf_fuse {

class PeerChannels {
 public:
  struct Channels {
    bool is_known = false;  // Whether Open() was called.
    PeerCalls calls;
    PeerCalls tensors;
    // That of large frames; 0: there is none now.
    std::shared_ptr<ChunkClient> parcels;
    uint64_t parcel_channel = 0;
  };

  // Whether some function of the job receives fused: until then nothing but a
  // frame opens a channel.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  void Want() { wanted_.store(true, std::memory_order_relaxed); }

  // While steps are recorded nothing is called by channels: gRPC's client
  // records what it receives.
  void BeginRecording() { recording_.fetch_add(1); }
  void EndRecording() { recording_.fetch_sub(1); }

  // Those to a task. One that restarts has a new incarnation.
  Channels Find(const std::string& task, uint64_t incarnation);

  // What makes calls to the task of that name which a step received from last.
  PeerCalls CallsTo(const std::string& task);
  // Until a step receives from that task, or any, again.
  void Forget(const std::string& task);
  void ForgetAll();

  // The task has sent something: opens the channel of calls in the background.
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
    std::shared_ptr<ChunkClient> calls;
    std::shared_ptr<ChunkClient> tensors;
    std::shared_ptr<ChunkClient> parcels;
    v1::PeerCard card;
    bool has_sent_large = false;
  };

  void OnCard(const Key& key, const absl::Status& status,
              const tensorflow::Tensor& frame);

  std::atomic<bool> wanted_{false};
  std::atomic<int> recording_{0};
  absl::Mutex mu_;
  std::map<Key, Peer> peers_ ABSL_GUARDED_BY(mu_);
  // By task: its incarnation that a step received from last.
  std::map<std::string, uint64_t> latest_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_PEERS_PEER_CHANNELS_H_
