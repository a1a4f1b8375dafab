// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Moves tensors between members of collectives under the protocol "grpc+fuse".
// Collectives of TensorFlow call RecvFromPeer() and PostToPeer() as ever; those
// of tf_fuse also Take() and Borrow() chunks.

#ifndef TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_REMOTE_ACCESS_H_
#define TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_REMOTE_ACCESS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "channel/chunk.h"
#include "collectives/remote_access/calls_under_way.h"
#include "collectives/remote_access/compare_operands.h"
#include "tensorflow/core/distributed_runtime/collective_rma_distributed.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

class ChunkClient;
class PendingPosts;
class PendingTake;

class FuseRemoteAccess : public tensorflow::CollectiveRemoteAccessDistributed {
 public:
  FuseRemoteAccess(const tensorflow::DeviceMgr* devices,
                   tensorflow::DeviceResolverInterface* resolver,
                   std::shared_ptr<tensorflow::UnboundedWorkQueue> queue,
                   tensorflow::WorkerCacheInterface* workers, int64_t step_id,
                   std::string task, std::shared_ptr<UnderWay> under_way);
  ~FuseRemoteAccess() override;

  void RecvFromPeer(const std::string& peer_device,
                    const std::string& peer_task, bool peer_is_local,
                    const std::string& key, tensorflow::Device* to_device,
                    tensorflow::DeviceContext* to_device_ctx,
                    const tensorflow::AllocatorAttributes& to_alloc_attr,
                    tensorflow::Tensor* to_tensor,
                    const tensorflow::DeviceLocality& client_locality,
                    int dev_to_dev_stream_index,
                    tensorflow::CancellationManager* cancellation_manager,
                    const tensorflow::StatusCallback& done) override;

  void PostToPeer(const std::string& peer_device, const std::string& peer_task,
                  const std::string& key, tensorflow::Device* from_device,
                  tensorflow::DeviceContext* from_device_ctx,
                  const tensorflow::AllocatorAttributes& from_alloc_attr,
                  const tensorflow::Tensor* from_tensor,
                  const tensorflow::DeviceLocality& client_locality,
                  tensorflow::CancellationManager* cancellation_manager,
                  const tensorflow::StatusCallback& done) override;

  void StartAbort(const absl::Status& status) override;

  // Whether Take() and Borrow() have a way to a member; else RecvFromPeer() is
  // the only one.
  static bool Reaches(const tensorflow::CollGroupMember& member);

  // Takes a chunk of a member of the group that it reaches, into host memory.
  // Of `chunk` the caller fills in key, bytes, and what is to be compared.
  void Take(const tensorflow::CollGroupMember& member, ChunkKey chunk,
            char* destination, tensorflow::CancellationManager* cancellation,
            ChunkDone done);
  // The same of kBlockBytes at most, which is not copied if that can be.
  void Borrow(const tensorflow::CollGroupMember& member, ChunkKey chunk,
              tensorflow::CancellationManager* cancellation, LoanDone done);

  // What this task puts into the collectives of the step.
  Operands* operands() { return &operands_; }

  // The calls of this task, in this step and in others.
  const std::shared_ptr<UnderWay>& under_way() const { return under_way_; }
  int64_t step_id() const { return step_id_; }

  // `access` as one, or null.
  static FuseRemoteAccess* From(tensorflow::CollectiveRemoteAccess* access);

 private:
  class LocalCall;

  // Starts a call by the first way that leads there, or calls `take_stock` if
  // TensorFlow's own is the only one.
  void Start(const tensorflow::DeviceAttributes& device,
             const std::string& task, ChunkKey chunk,
             const std::shared_ptr<PendingTake>& request,
             const std::function<void()>& take_stock);

  // By a data channel; `otherwise` is called where it does not come about.
  void StartByChannel(const std::shared_ptr<ChunkClient>& client,
                      const v1::PeerCard& card, const ChunkKey& chunk,
                      const std::shared_ptr<PendingTake>& request,
                      const std::function<void()>& otherwise);
  // Of a member that it reaches: TensorFlow's way is not taken.
  void StartOrFail(const tensorflow::CollGroupMember& member, ChunkKey chunk,
                   const std::shared_ptr<PendingTake>& request);

  // False if the card is of another process.
  bool StartHere(const std::optional<v1::PeerCard>& card, const ChunkKey& chunk,
                 const std::shared_ptr<PendingTake>& request);

  Operands operands_;
  const std::shared_ptr<UnderWay> under_way_;
  const std::shared_ptr<PendingPosts> posts_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_REMOTE_ACCESS_H_
