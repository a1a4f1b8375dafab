// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tracks a chunk that this member takes or borrows, until it comes or is
// cancelled.

#ifndef TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_PENDING_TAKE_H_
#define TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_PENDING_TAKE_H_

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/metrics.h"
#include "channel/chunk.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tf_fuse {

// A call and the two reasons to cancel it: the operation's, and the abort of
// the step's collectives.
class PendingTake : public std::enable_shared_from_this<PendingTake> {
 public:
  // With a destination a Take(), without one a Borrow(); exactly one of the
  // callbacks is called, once.
  PendingTake(char* destination, ChunkDone done, LoanDone loan_done,
              tensorflow::CancellationManager* operation,
              tensorflow::CancellationManager* step)
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
    if (result.ok()) Metrics::Get()->chunk_waits.Add(stopwatch_.Micros());
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
  const Stopwatch stopwatch_;
  tensorflow::CancellationManager* const managers_[2];
  tensorflow::CancellationToken tokens_[2] = {};
  bool registered_[2] = {false, false};
  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<ChunkCall> call_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_PENDING_TAKE_H_
