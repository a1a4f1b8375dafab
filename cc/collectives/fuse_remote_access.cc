// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/fuse_remote_access.h"

#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "collectives/chunk_client.h"
#include "collectives/chunk_source.h"
#include "collectives/grpc_chunk.h"
#include "collectives/memory.h"
#include "collectives/peer_card.h"
#include "collectives/shared_slots.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/platform/logging.h"
#include "transport/metrics.h"

namespace tf_fuse {

using tensorflow::CancellationManager;
using tensorflow::Device;
using tensorflow::Tensor;

// A call and the two reasons to cancel it: the operation's, and the abort of
// the step's collectives.
class FuseRemoteAccess::Request
    : public std::enable_shared_from_this<FuseRemoteAccess::Request> {
 public:
  // With a destination a Take(), without one a Borrow(); exactly one of the
  // callbacks is called, once.
  Request(char* destination, ChunkDone done, LoanDone loan_done,
          CancellationManager* operation, CancellationManager* step)
      : destination_(destination),
        done_(std::move(done)),
        loan_done_(std::move(loan_done)),
        managers_{operation, step} {}

  char* destination() const { return destination_; }
  bool is_loan() const { return loan_done_ != nullptr; }

  // What a call of it calls back.
  ChunkDone Taken() {
    return [self = shared_from_this()](const absl::Status& status) {
      self->Finish(status);
    };
  }
  LoanDone Lent() {
    return [self = shared_from_this()](absl::StatusOr<ChunkLoan> loan) {
      self->Finish(std::move(loan));
    };
  }

  // False if it is cancelled already; then it has been answered.
  bool WatchCancellation() {
    for (int i = 0; i < 2; ++i) {
      if (managers_[i] == nullptr) continue;
      tokens_[i] = managers_[i]->get_cancellation_token();
      const bool registered = managers_[i]->RegisterCallback(
          tokens_[i], [self = shared_from_this()] { self->Cancel(); });
      if (registered) {
        registered_[i] = true;
        continue;
      }
      Finish(Why());
      return false;
    }
    return true;
  }

  // The call that is under way. It may have ended.
  void Follow(std::shared_ptr<ChunkCall> call) {
    if (call == nullptr) return;  // It has failed.
    bool cancelled;
    {
      absl::MutexLock lock(&mu_);
      cancelled = cancelled_;
      call_ = call;
    }
    if (cancelled) call->Cancel(Why());
  }

  // Somebody else answers for it.
  void Leave() {
    for (int i = 0; i < 2; ++i) {
      if (registered_[i]) managers_[i]->TryDeregisterCallback(tokens_[i]);
    }
  }

  void Finish(absl::StatusOr<ChunkLoan> result) {
    Leave();
    std::shared_ptr<ChunkCall> last;
    {
      absl::MutexLock lock(&mu_);
      last = std::move(call_);
    }
    if (is_loan()) {
      loan_done_(std::move(result));
    } else {
      done_(result.status());
    }
  }
  void Finish(const absl::Status& status) {
    if (!status.ok()) return Finish(absl::StatusOr<ChunkLoan>(status));
    Finish(absl::StatusOr<ChunkLoan>(ChunkLoan()));
  }

 private:
  static absl::Status Why() {
    return absl::CancelledError("the collective was cancelled");
  }

  void Cancel() {
    std::shared_ptr<ChunkCall> call;
    {
      absl::MutexLock lock(&mu_);
      cancelled_ = true;
      call = call_;
    }
    if (call != nullptr) call->Cancel(Why());
  }

  char* const destination_;
  const ChunkDone done_;
  const LoanDone loan_done_;
  CancellationManager* const managers_[2];
  tensorflow::CancellationToken tokens_[2] = {};
  bool registered_[2] = {false, false};
  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<ChunkCall> call_ ABSL_GUARDED_BY(mu_);
};

// A chunk of this process, perhaps of another task.
class FuseRemoteAccess::LocalCall : public ChunkCall {
 public:
  static void Start(const std::shared_ptr<LocalCall>& self,
                    const std::shared_ptr<ChunkSource>& source,
                    const ChunkKey& chunk,
                    const std::shared_ptr<Request>& request) {
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

// What was posted and not taken yet. A consumer that has stopped in the middle
// of a chunk would keep its producer waiting, also when the collective is
// aborted: then the producer goes on, and the memory, of which there is another
// reference here, stays until it is let go of.
class FuseRemoteAccess::Posts {
 public:
  struct Post {
    Tensor tensor;
    tensorflow::StatusCallback done;
  };

  std::shared_ptr<Post> Add(const Tensor& tensor,
                            tensorflow::StatusCallback done) {
    auto post = std::make_shared<Post>();
    post->tensor = tensor;
    post->done = std::move(done);
    absl::MutexLock lock(&mu_);
    open_.insert(post);
    return post;
  }

  // Calls back, unless that was done.
  void End(const std::shared_ptr<Post>& post, const absl::Status& status) {
    {
      absl::MutexLock lock(&mu_);
      if (open_.erase(post) == 0) return;
    }
    std::exchange(post->done, nullptr)(status);
  }

  void EndAll(const absl::Status& status) {
    std::set<std::shared_ptr<Post>> all;
    {
      absl::MutexLock lock(&mu_);
      all = open_;
    }
    for (const std::shared_ptr<Post>& post : all) End(post, status);
  }

 private:
  absl::Mutex mu_;
  std::set<std::shared_ptr<Post>> open_ ABSL_GUARDED_BY(mu_);
};

FuseRemoteAccess::FuseRemoteAccess(
    const tensorflow::DeviceMgr* devices,
    tensorflow::DeviceResolverInterface* resolver,
    std::shared_ptr<tensorflow::UnboundedWorkQueue> queue,
    tensorflow::WorkerCacheInterface* workers, int64_t step_id,
    std::string task)
    : CollectiveRemoteAccessDistributed(devices, resolver, std::move(queue),
                                        workers, step_id, std::move(task)),
      posts_(std::make_shared<Posts>()) {}

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
  const std::shared_ptr<Posts::Post> post = posts_->Add(*from_tensor, done);
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
                                 const std::shared_ptr<Request>& request) {
  if (!card.has_value()) return false;
  const std::shared_ptr<ChunkSource> source =
      ChunkSource::Find(card->task_token());
  if (source == nullptr) return false;
  LocalCall::Start(std::make_shared<LocalCall>(), source, chunk, request);
  return true;
}

void FuseRemoteAccess::Start(const tensorflow::DeviceAttributes& device,
                             const std::string& task, ChunkKey chunk,
                             const std::shared_ptr<Request>& request,
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
    const ChunkKey& chunk, const std::shared_ptr<Request>& request,
    const std::function<void()>& otherwise) {
  if (!request->is_loan()) {
    return request->Follow(client->Take(chunk, card.task_token(),
                                        request->destination(),
                                        request->Taken(), otherwise));
  }
  if (chunk.bytes <= kSlotBytes) {
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
  auto take_stock = [=](const std::shared_ptr<Request>& request) {
    request->Leave();
    Metrics::Get()->collective_bytes_stock.fetch_add(to_tensor->TotalBytes());
    CollectiveRemoteAccessDistributed::RecvFromPeer(
        peer_device, peer_task, peer_is_local, key, to_device, to_device_ctx,
        to_alloc_attr, to_tensor, client_locality, dev_to_dev_stream_index,
        cancellation_manager, done);
  };
  // What follows a receive may take long, and a data channel's thread serves
  // all of them.
  auto request = std::make_shared<Request>(
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

void FuseRemoteAccess::StartOrFail(const tensorflow::CollGroupMember& member,
                                   ChunkKey chunk,
                                   const std::shared_ptr<Request>& request) {
  if (!request->WatchCancellation()) return;
  Start(member.device, member.task, std::move(chunk), request, [request] {
    request->Finish(absl::UnavailableError("no way leads to the task"));
  });
}

void FuseRemoteAccess::Take(const tensorflow::CollGroupMember& member,
                            ChunkKey chunk, char* destination,
                            CancellationManager* cancellation, ChunkDone done) {
  auto request =
      std::make_shared<Request>(destination, std::move(done), nullptr,
                                cancellation, &abortion_cancel_mgr_);
  StartOrFail(member, std::move(chunk), request);
}

void FuseRemoteAccess::Borrow(const tensorflow::CollGroupMember& member,
                              ChunkKey chunk, CancellationManager* cancellation,
                              LoanDone done) {
  auto request = std::make_shared<Request>(nullptr, nullptr, std::move(done),
                                           cancellation, &abortion_cancel_mgr_);
  StartOrFail(member, std::move(chunk), request);
}

}  // namespace tf_fuse
