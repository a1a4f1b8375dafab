// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "server/ended_steps.h"

#include <memory>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

using tensorflow::eager::EagerClient;

namespace {

// A task keeps little for a step that has ended: its name, and where its
// tensors met.
constexpr absl::Duration kDelay = absl::Milliseconds(20);

void Send(std::shared_ptr<EagerClient> client,
          tensorflow::eager::EnqueueRequest message) {
  const auto request =
      std::make_shared<tensorflow::eager::EnqueueRequest>(std::move(message));
  const auto response = std::make_shared<tensorflow::eager::EnqueueResponse>();
  EagerClient* const sends = client.get();
  // (Who holds the client last, ends its thread: not this one.)
  sends->EnqueueAsync(
      /*call_opts=*/nullptr, request.get(), response.get(),
      [client = std::move(client), request,
       response](const absl::Status& status) {
        if (!status.ok()) {
          VLOG(1) << "tf_fuse: cannot tell a task that steps have ended: "
                  << status;
        }
      });
}

}  // namespace

EndedSteps* EndedSteps::Get() {
  static EndedSteps* steps = new EndedSteps;
  return steps;
}

EndedSteps::EndedSteps() {
  // Never joined: it ends with the process.
  (void)tensorflow::Env::Default()->StartThread(
      tensorflow::ThreadOptions(), "tf_fuse_ended_steps", [this] { Run(); });
}

void EndedSteps::Add(tensorflow::eager::EagerClient* client,
                     const tensorflow::eager::EnqueueRequest& request) {
  absl::MutexLock lock(&mu_);
  Message& message = messages_[{client, request.context_id()}];
  if (message.client == nullptr) {
    client->Ref();
    message.client.reset(client);
    message.request.set_context_id(request.context_id());
  }
  message.request.mutable_queue()->MergeFrom(request.queue());
}

void EndedSteps::Run() {
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
      Send(std::move(client), std::move(message.request));
    }
  }
}

}  // namespace tf_fuse
