// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Passes a caller's cancellation on to a call that may outlive the caller.

#ifndef TF_FUSE_CC_COLLECTIVES_RUNTIME_KEPT_CANCELLATION_H_
#define TF_FUSE_CC_COLLECTIVES_RUNTIME_KEPT_CANCELLATION_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tf_fuse {

// A caller's cancellation, for a call that may outlive the caller: one that has
// timed out returns, and its CancellationManager goes, while TensorFlow's RPC
// to the leader of the group ends and still uses the manager that it was given.
class KeptCancellation {
 public:
  // `caller` may be null.
  static std::shared_ptr<KeptCancellation> Of(
      tensorflow::CancellationManager* caller) {
    auto kept = std::make_shared<KeptCancellation>();
    if (caller == nullptr) return kept;
    kept->Follow(caller, caller->get_cancellation_token());
    // A manager that goes calls what is registered, so `caller_` is never one
    // that is gone.
    if (!caller->RegisterCallback(kept->token_, [kept] { kept->Cancel(); })) {
      kept->Cancel();
    }
    return kept;
  }

  tensorflow::CancellationManager* manager() { return &manager_; }

  // The call has ended.
  void End() {
    absl::MutexLock lock(&mu_);
    if (caller_ != nullptr) caller_->TryDeregisterCallback(token_);
    caller_ = nullptr;
  }

 private:
  void Follow(tensorflow::CancellationManager* caller, int64_t token) {
    absl::MutexLock lock(&mu_);
    caller_ = caller;
    token_ = token;
  }
  void Cancel() {
    {
      absl::MutexLock lock(&mu_);
      caller_ = nullptr;
    }
    manager_.StartCancel();
  }

  absl::Mutex mu_;
  tensorflow::CancellationManager* caller_ ABSL_GUARDED_BY(mu_) = nullptr;
  int64_t token_ = 0;  // Not changed once it is registered.
  tensorflow::CancellationManager manager_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_RUNTIME_KEPT_CANCELLATION_H_
