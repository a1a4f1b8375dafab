// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/peers/peer_call.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/executors.h"
#include "channel/calls/call_server.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/status.h"

namespace tf_fuse {

namespace {

// More would hold up the channel's thread.
constexpr size_t kMaxParsedHere = 1 << 20;

const char* GrpcMethod(v1::CallMethod method) {
  return method == v1::CALL_METHOD_RUN_COMPONENT_FUNCTION
             ? "/tensorflow.eager.EagerService/RunComponentFunction"
             : "/tensorflow.WorkerService/RecvTensor";
}

// TensorFlow's ClusterCoordinator looks for gRPC's text and "/job:ps" in an
// error to see whether a server has failed, and not a worker.
absl::Status AsOfTask(const absl::Status& status, const std::string& task,
                      v1::CallMethod method) {
  const absl::Status named = tensorflow::errors::CreateWithUpdatedMessage(
      status,
      absl::StrCat(status.message(),
                   "\nAdditional GRPC error information from remote target ",
                   task, " while calling ", GrpcMethod(method),
                   ":\n:it was called by a data channel"));
  // As there: a cancellation is never the root of an error.
  return absl::IsCancelled(named) ? tensorflow::StatusGroup::MakeDerived(named)
                                  : named;
}

// The number of a call, which may be cancelled before it has one.
class CallNumber {
 public:
  // True if it was cancelled.
  bool Set(uint64_t call) {
    absl::MutexLock lock(&mu_);
    call_ = call;
    return cancelled_;
  }
  // Returns the number; 0 if there is none yet.
  uint64_t Cancel() {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    return call_;
  }

 private:
  absl::Mutex mu_;
  uint64_t call_ ABSL_GUARDED_BY(mu_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

bool StartPeerCall(const PeerCalls& peer, v1::CallMethod method,
                   const google::protobuf::MessageLite& request,
                   uint64_t max_bytes, tensorflow::CallOptions* options,
                   CallDone done) {
  if (peer.client == nullptr || request.ByteSizeLong() > kMaxCallRequestBytes) {
    return false;
  }
  // `options` may be gone as soon as the call was started.
  const auto number = std::make_shared<CallNumber>();
  // (Elsewhere: who cancels may hold locks that what follows takes.)
  options->SetCancelCallback([client = peer.client, number] {
    const uint64_t call = number->Cancel();
    if (call != 0) client->CancelElsewhere(call);
  });
  auto answered = [task = peer.task, method, options, done](
                      const absl::Status& status,
                      const tensorflow::Tensor& answer) {
    options->ClearCancelCallback();
    if (!status.ok()) return done(AsOfTask(status, task, method), answer);
    const bool is_parsed = method != v1::CALL_METHOD_FRAME;
    if (!is_parsed || answer.TotalBytes() <= kMaxParsedHere) {
      return done(status, answer);
    }
    ScheduleElsewhere([done, status, answer] { done(status, answer); });
  };
  const uint64_t call =
      peer.client->Start(peer.server, method, request.SerializeAsString(),
                         max_bytes, std::move(answered));
  const bool cancelled = number->Set(call);
  if (call == 0) {
    options->ClearCancelCallback();
    if (!cancelled) return false;
    done(AsOfTask(absl::CancelledError("the call was cancelled"), peer.task,
                  method),
         tensorflow::Tensor());
  } else if (cancelled) {
    peer.client->CancelElsewhere(call);
  }
  return true;
}

}  // namespace tf_fuse
