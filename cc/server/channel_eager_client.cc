// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "server/channel_eager_client.h"

#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/delayed_messages.h"
#include "tensorflow/core/platform/refcount.h"
#include "tensorflow/core/protobuf/eager_service.pb.h"
#include "transport/peers/peer_channels.h"
#include "transport/watch/stall_report.h"

namespace tf_fuse {

namespace {

using tensorflow::CallOptions;
using tensorflow::StatusCallback;
using tensorflow::core::RefCountPtr;
using tensorflow::eager::EagerClient;
using tensorflow::eager::EnqueueRequest;
using tensorflow::eager::EnqueueResponse;
using tensorflow::eager::QueueItem;
using tensorflow::eager::RunComponentFunctionRequest;
using tensorflow::eager::RunComponentFunctionResponse;

bool IsAllOf(const EnqueueRequest& request, QueueItem::ItemCase kind) {
  for (const QueueItem& item : request.queue()) {
    if (item.item_case() != kind) return false;
  }
  return request.queue_size() > 0;
}

void TakeAnswer(const std::string& task, const absl::Status& status,
                const tensorflow::Tensor& answer,
                RunComponentFunctionResponse* response,
                const StatusCallback& done) {
  if (!status.ok()) {
    // Perhaps the channel leads to a process that was this task before.
    PeerChannels::Get()->Forget(task);
    return done(status);
  }
  const auto bytes = static_cast<int>(answer.TotalBytes());
  done(response->ParseFromArray(answer.data(), bytes)
           ? absl::OkStatus()
           : absl::DataLossError(
                 absl::StrCat("data channel: an answer of ", bytes,
                              " bytes is not a RunComponentFunctionResponse")));
}

class ChannelEagerClient : public EagerClient {
 public:
  ChannelEagerClient(RefCountPtr<EagerClient> client, std::string task)
      : client_(std::move(client)), task_(std::move(task)) {}

#define TF_FUSE_FORWARD(method)                                         \
  void method##Async(const tensorflow::eager::method##Request* request, \
                     tensorflow::eager::method##Response* response,     \
                     StatusCallback done) override {                    \
    client_->method##Async(request, response, std::move(done));         \
  }
  TF_FUSE_FORWARD(CreateContext);
  TF_FUSE_FORWARD(UpdateContext);
  TF_FUSE_FORWARD(WaitQueueDone);
  TF_FUSE_FORWARD(KeepAlive);
  TF_FUSE_FORWARD(CloseContext);
#undef TF_FUSE_FORWARD

  void CreateContextAsync(
      const tensorflow::eager::CreateContextRequest* request,
      tensorflow::eager::CreateContextResponse* response, StatusCallback done,
      int64_t timeout_ms, int retries) override {
    client_->CreateContextAsync(request, response, std::move(done), timeout_ms,
                                retries);
  }

  void EnqueueAsync(CallOptions* options, const EnqueueRequest* request,
                    EnqueueResponse* response, StatusCallback done) override {
    // Steps that have ended.
    if (!IsAllOf(*request, QueueItem::kCleanupFunction) || !HasChannel()) {
      return client_->EnqueueAsync(options, request, response, std::move(done));
    }
    Delay(*request, /*in_order=*/false, response, done);
  }

  void RunComponentFunctionAsync(CallOptions* options,
                                 const RunComponentFunctionRequest* request,
                                 RunComponentFunctionResponse* response,
                                 StatusCallback done) override {
    const PeerCalls peer = PeerChannels::Get()->CallsTo(task_);
    // (A call that is not started does not take `done`.)
    if (options != nullptr &&
        StartPeerCall(
            peer, v1::CALL_METHOD_RUN_COMPONENT_FUNCTION, *request,
            kMaxAnswerMessageBytes, options,
            [task = task_, response, done](const absl::Status& status,
                                           const tensorflow::Tensor& answer) {
              TakeAnswer(task, status, answer, response, done);
            })) {
      return;
    }
    client_->RunComponentFunctionAsync(options, request, response,
                                       std::move(done));
  }

  void StreamingEnqueueAsync(bool enable, CallOptions* options,
                             const EnqueueRequest* request,
                             EnqueueResponse* response,
                             StatusCallback done) override {
    // Results that nobody holds any longer.
    const bool may_wait =
        enable && IsAllOf(*request, QueueItem::kHandleToDecref);
    if (!may_wait || !HasChannel()) {
      return client_->StreamingEnqueueAsync(enable, options, request, response,
                                            std::move(done));
    }
    // (Without a stream, whoever makes a result has waited for it.)
    Delay(*request, client_->allow_multiple_pending_requests(), response, done);
  }

  bool allow_multiple_pending_requests() const override {
    return client_->allow_multiple_pending_requests();
  }

 private:
  void Delay(const EnqueueRequest& request, bool in_order,
             EnqueueResponse* response, const StatusCallback& done) {
    DelayedMessages::Get()->Add(client_.get(), request, in_order);
    for (int i = 0; i < request.queue_size(); ++i) {
      response->add_queue_response();
    }
    done(absl::OkStatus());
  }

  bool HasChannel() const {
    return PeerChannels::Get()->CallsTo(task_).client != nullptr;
  }

  const RefCountPtr<EagerClient> client_;
  const std::string task_;
};

class ChannelEagerClientCache : public tensorflow::eager::EagerClientCache {
 public:
  explicit ChannelEagerClientCache(
      std::unique_ptr<tensorflow::eager::EagerClientCache> cache)
      : cache_(std::move(cache)) {}

  absl::Status GetClient(const std::string& target,
                         RefCountPtr<EagerClient>* client) override {
    RefCountPtr<EagerClient> found;
    const absl::Status status = cache_->GetClient(target, &found);
    if (!status.ok()) return status;
    absl::MutexLock lock(&mu_);
    RefCountPtr<ChannelEagerClient>& kept = clients_[{target, found.get()}];
    if (kept == nullptr) {
      kept.reset(
          new ChannelEagerClient(std::move(found), TaskOfDevice(target)));
    }
    kept->Ref();
    client->reset(kept.get());
    return status;
  }

 private:
  const std::unique_ptr<tensorflow::eager::EagerClientCache> cache_;
  absl::Mutex mu_;
  // TensorFlow uses a client without a reference, for as long as its cache
  // lives.
  std::map<std::pair<std::string, EagerClient*>,
           RefCountPtr<ChannelEagerClient>>
      clients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<tensorflow::eager::EagerClientCache> WithChannels(
    std::unique_ptr<tensorflow::eager::EagerClientCache> cache) {
  return std::make_unique<ChannelEagerClientCache>(std::move(cache));
}

}  // namespace tf_fuse
