// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "server/delayed_messages.h"

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

using tensorflow::eager::EagerClient;
using tensorflow::eager::EnqueueRequest;
using tensorflow::eager::EnqueueResponse;

namespace {

// A task keeps little for a step that has ended: its name, where its tensors
// met, and what it returned.
constexpr absl::Duration kDelay = absl::Milliseconds(20);

void Send(std::shared_ptr<EagerClient> client, EnqueueRequest message,
          bool in_order) {
  const auto request = std::make_shared<EnqueueRequest>(std::move(message));
  const auto response = std::make_shared<EnqueueResponse>();
  EagerClient* const sends = client.get();
  // (Who holds the client last, ends its thread: not this one.)
  auto done = [client = std::move(client), request,
               response](const absl::Status& status) {
    if (!status.ok()) {
      VLOG(1) << "tf_fuse: cannot tell a task what has ended: " << status;
    }
  };
  if (in_order) {
    sends->StreamingEnqueueAsync(/*enable_streaming_enqueue=*/true,
                                 /*call_opts=*/nullptr, request.get(),
                                 response.get(), std::move(done));
  } else {
    sends->EnqueueAsync(/*call_opts=*/nullptr, request.get(), response.get(),
                        std::move(done));
  }
}

}  // namespace

DelayedMessages* DelayedMessages::Get() {
  static DelayedMessages* messages = new DelayedMessages;
  return messages;
}

DelayedMessages::DelayedMessages() {
  // Never joined: it ends with the process.
  (void)tensorflow::Env::Default()->StartThread(tensorflow::ThreadOptions(),
                                                "tf_fuse_delayed_messages",
                                                [this] { Run(); });
}

void DelayedMessages::Add(EagerClient* client, const EnqueueRequest& request,
                          bool in_order) {
  absl::MutexLock lock(&mu_);
  Message& message = messages_[{client, request.context_id(), in_order}];
  if (message.client == nullptr) {
    client->Ref();
    message.client.reset(client);
    message.request.set_context_id(request.context_id());
  }
  message.request.mutable_queue()->MergeFrom(request.queue());
}

void DelayedMessages::Run() {
  auto any = [this]()
                 ABSL_NO_THREAD_SAFETY_ANALYSIS { return !messages_.empty(); };
  while (true) {
    mu_.LockWhen(absl::Condition(&any));
    mu_.Unlock();
    absl::SleepFor(kDelay);
    Messages messages;
    {
      absl::MutexLock lock(&mu_);
      messages.swap(messages_);
    }
    for (auto& [key, message] : messages) {
      std::shared_ptr<EagerClient> client(
          message.client.release(), [](EagerClient* one) { one->Unref(); });
      Send(std::move(client), std::move(message.request), std::get<2>(key));
    }
  }
}

}  // namespace tf_fuse
