// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/remote_access/remote_access.h"

#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/metrics.h"
#include "base/recycled_memory.h"
#include "channel/chunk_client.h"
#include "channel/chunk_source.h"
#include "channel/peer_card.h"
#include "channel/shared_memory/blocks.h"
#include "collectives/remote_access/grpc_chunk.h"
#include "collectives/remote_access/pending_posts.h"
#include "collectives/remote_access/pending_take.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

using tensorflow::CancellationManager;
using tensorflow::Device;
using tensorflow::Tensor;

// A chunk of this process, perhaps of another task.
class FuseRemoteAccess::LocalCall : public ChunkCall {
 public:
  static void Start(const std::shared_ptr<LocalCall>& self,
                    const std::shared_ptr<ChunkSource>& source,
                    const ChunkKey& chunk,
                    const std::shared_ptr<PendingTake>& request) {
    request->Follow(self);
    source->Take(
        chunk, &self->cancellation_,
        [self, request,
         bytes = chunk.bytes](absl::StatusOr<PostedChunk> posted) {
          if (!posted.ok()) return request->Finish(posted.status());
          if (request->is_loan()) {
            return request->Finish(ChunkLoan(posted->data, posted->done));
          }
          std::memcpy(request->destination(), posted->data, bytes);
          posted->done();
          request->Finish(absl::OkStatus());
        });
  }

  void Cancel(const absl::Status& why) override { cancellation_.StartCancel(); }

 private:
  CancellationManager cancellation_;
};

namespace {

void SayPlainOnce(const std::string& task) {
  static absl::Mutex mu(absl::kConstInit);
  static auto* const said = new std::set<std::string>;
  absl::MutexLock lock(&mu);
  if (!said->insert(task).second) return;
  LOG(INFO) << "tf_fuse: " << task
            << " does not run the protocol grpc+fuse: collectives with it go "
               "by TensorFlow's own way";
}

}  // namespace

FuseRemoteAccess::FuseRemoteAccess(
    const tensorflow::DeviceMgr* devices,
    tensorflow::DeviceResolverInterface* resolver,
    std::shared_ptr<tensorflow::UnboundedWorkQueue> queue,
    tensorflow::WorkerCacheInterface* workers, int64_t step_id,
    std::string task, std::shared_ptr<UnderWay> under_way)
    : CollectiveRemoteAccessDistributed(devices, resolver, std::move(queue),
                                        workers, step_id, std::move(task)),
      under_way_(std::move(under_way)),
      posts_(std::make_shared<PendingPosts>()) {}

FuseRemoteAccess::~FuseRemoteAccess() = default;

void FuseRemoteAccess::PostToPeer(
    const std::string& peer_device, const std::string& peer_task,
    const std::string& key, Device* from_device,
    tensorflow::DeviceContext* from_device_ctx,
    const tensorflow::AllocatorAttributes& from_alloc_attr,
    const Tensor* from_tensor,
    const tensorflow::DeviceLocality& client_locality,
    CancellationManager* cancellation_manager,
    const tensorflow::StatusCallback& done) {
  const std::shared_ptr<PendingPosts::Post> post =
      posts_->Add(*from_tensor, done);
  CollectiveRemoteAccessDistributed::PostToPeer(
      peer_device, peer_task, key, from_device, from_device_ctx,
      from_alloc_attr, &post->tensor, client_locality, cancellation_manager,
      [posts = posts_, post](const absl::Status& status) {
        posts->End(post, status);
      });
}

void FuseRemoteAccess::StartAbort(const absl::Status& status) {
  CollectiveRemoteAccessDistributed::StartAbort(status);
  posts_->EndAll(status);
}

FuseRemoteAccess* FuseRemoteAccess::From(
    tensorflow::CollectiveRemoteAccess* access) {
  return dynamic_cast<FuseRemoteAccess*>(access);
}

bool FuseRemoteAccess::Reaches(const tensorflow::CollGroupMember& member) {
  const std::optional<v1::PeerCard> card = CardOf(member.device);
  return card.has_value() && ((card->serves_grpc() && AllowedPaths().grpc) ||
                              ChunkClient::To(*card) != nullptr ||
                              ChunkSource::Find(card->task_token()) != nullptr);
}

bool FuseRemoteAccess::StartHere(const std::optional<v1::PeerCard>& card,
                                 const ChunkKey& chunk,
                                 const std::shared_ptr<PendingTake>& request) {
  if (!card.has_value()) return false;
  const std::shared_ptr<ChunkSource> source =
      ChunkSource::Find(card->task_token());
  if (source == nullptr) return false;
  LocalCall::Start(std::make_shared<LocalCall>(), source, chunk, request);
  return true;
}

void FuseRemoteAccess::Start(const tensorflow::DeviceAttributes& device,
                             const std::string& task, ChunkKey chunk,
                             const std::shared_ptr<PendingTake>& request,
                             const std::function<void()>& take_stock) {
  const std::optional<v1::PeerCard> card = CardOf(device);
  const bool by_grpc =
      card.has_value() && card->serves_grpc() && AllowedPaths().grpc;
  const std::shared_ptr<ChunkClient> client =
      card.has_value() ? ChunkClient::To(*card) : nullptr;
  if (!by_grpc && client == nullptr) {
    if (!card.has_value()) SayPlainOnce(task);
    return take_stock();
  }
  chunk.step_id = step_id_;
  chunk.device = device.name();
  chunk.device_incarnation = device.incarnation();
  if (StartHere(card, chunk, request)) return;
  auto start_grpc = [this, task, chunk, request, by_grpc, take_stock] {
    if (!by_grpc) return take_stock();
    request->Follow(
        request->is_loan()
            ? BorrowByGrpc(task, worker_cache_, chunk, request->Lent())
            : TakeByGrpc(task, worker_cache_, chunk, request->destination(),
                         request->Taken()));
  };
  if (client == nullptr) return start_grpc();
  StartByChannel(client, *card, chunk, request, start_grpc);
}

void FuseRemoteAccess::StartByChannel(
    const std::shared_ptr<ChunkClient>& client, const v1::PeerCard& card,
    const ChunkKey& chunk, const std::shared_ptr<PendingTake>& request,
    const std::function<void()>& otherwise) {
  if (!request->is_loan()) {
    return request->Follow(client->Take(chunk, card.task_token(),
                                        request->destination(),
                                        request->Taken(), otherwise));
  }
  if (chunk.bytes <= kBlockBytes) {
    return request->Follow(
        client->Borrow(chunk, card.task_token(), request->Lent(), otherwise));
  }
  // It comes in parts.
  const std::shared_ptr<char> whole = RecycledBuffer(chunk.bytes);
  if (whole == nullptr) {
    return request->Finish(absl::ResourceExhaustedError(
        absl::StrCat("no memory for a chunk of ", chunk.bytes, " bytes")));
  }
  request->Follow(client->Take(
      chunk, card.task_token(), whole.get(),
      [request, whole](const absl::Status& status) {
        if (!status.ok()) return request->Finish(status);
        request->Finish(ChunkLoan(whole.get(), [whole] {}));
      },
      otherwise));
}

void FuseRemoteAccess::RecvFromPeer(
    const std::string& peer_device, const std::string& peer_task,
    bool peer_is_local, const std::string& key, Device* to_device,
    tensorflow::DeviceContext* to_device_ctx,
    const tensorflow::AllocatorAttributes& to_alloc_attr, Tensor* to_tensor,
    const tensorflow::DeviceLocality& client_locality,
    int dev_to_dev_stream_index, CancellationManager* cancellation_manager,
    const tensorflow::StatusCallback& done) {
  tensorflow::DeviceAttributes attributes;
  if (peer_is_local ||
      to_device->tensorflow_accelerator_device_info() != nullptr ||
      !dev_resolver_->GetDeviceAttributes(peer_device, &attributes).ok()) {
    return CollectiveRemoteAccessDistributed::RecvFromPeer(
        peer_device, peer_task, peer_is_local, key, to_device, to_device_ctx,
        to_alloc_attr, to_tensor, client_locality, dev_to_dev_stream_index,
        cancellation_manager, done);
  }
  auto take_stock = [=](const std::shared_ptr<PendingTake>& request) {
    request->Leave();
    Metrics::Get()->collective_bytes_stock.fetch_add(to_tensor->TotalBytes());
    CollectiveRemoteAccessDistributed::RecvFromPeer(
        peer_device, peer_task, peer_is_local, key, to_device, to_device_ctx,
        to_alloc_attr, to_tensor, client_locality, dev_to_dev_stream_index,
        cancellation_manager, done);
  };
  // What follows a receive may take long, and a data channel's thread serves
  // all of them.
  auto request = std::make_shared<PendingTake>(
      static_cast<char*>(tensorflow::DMAHelper::base(to_tensor)),
      [queue = work_queue_, done](const absl::Status& status) {
        queue->Schedule([status, done] { done(status); });
      },
      nullptr, cancellation_manager, &abortion_cancel_mgr_);
  if (!request->WatchCancellation()) return;
  ChunkKey chunk;
  chunk.key = key;
  chunk.bytes = to_tensor->TotalBytes();
  Start(attributes, peer_task, std::move(chunk), request,
        [request, take_stock] { take_stock(request); });
}

void FuseRemoteAccess::StartOrFail(
    const tensorflow::CollGroupMember& member, ChunkKey chunk,
    const std::shared_ptr<PendingTake>& request) {
  if (!request->WatchCancellation()) return;
  Start(member.device, member.task, std::move(chunk), request,
        [request, task = member.task] {
          request->Finish(absl::UnavailableError(absl::StrCat(
              "no way leads to the task ", task,
              ": of the paths that TF_FUSE_COLLECTIVE_PATHS of both tasks "
              "names none works, and this task's log has the reason; allow "
              "grpc, or another one, in both")));
        });
}

void FuseRemoteAccess::Take(const tensorflow::CollGroupMember& member,
                            ChunkKey chunk, char* destination,
                            CancellationManager* cancellation, ChunkDone done) {
  auto request =
      std::make_shared<PendingTake>(destination, std::move(done), nullptr,
                                    cancellation, &abortion_cancel_mgr_);
  StartOrFail(member, std::move(chunk), request);
}

void FuseRemoteAccess::Borrow(const tensorflow::CollGroupMember& member,
                              ChunkKey chunk, CancellationManager* cancellation,
                              LoanDone done) {
  auto request = std::make_shared<PendingTake>(
      nullptr, nullptr, std::move(done), cancellation, &abortion_cancel_mgr_);
  StartOrFail(member, std::move(chunk), request);
}

}  // namespace tf_fuse
