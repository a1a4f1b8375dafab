// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The sender's side of requests by parts: the tensors of one step that were
// asked for, until they are sent.

#ifndef TF_FUSE_CC_TRANSPORT_SENDER_PARTIAL_SENDS_H_
#define TF_FUSE_CC_TRANSPORT_SENDER_PARTIAL_SENDS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/platform/refcount.h"
#include "transport/message/receive_keys.h"
#include "transport/message/tensor_frame.h"
#include "transport/sender/request_budget.h"

namespace tf_fuse {

class StepRendezvous;

// A tensor is received from the step once, when it is first asked for, however
// many requests follow. What comes while nobody asks is kept until somebody
// does, or the step is aborted, as TensorFlow keeps what nobody receives.
// Thread-safe.
//
// What a request takes of the budget (request_budget.h) is given back when the
// last of its tensors is sent or dropped, not with its first answer.
class PartialSends : public std::enable_shared_from_this<PartialSends> {
 public:
  // A request that waits for tensors.
  class Asker {
   public:
    virtual ~Asker() = default;
    // A tensor is there, or failed.
    virtual void Wake() = 0;
    virtual bool measures_waits() const = 0;
  };

  // One tensor that was asked for. Guarded by the mutex of its PartialSends.
  class Tensor;
  using Tensors = std::vector<std::shared_ptr<Tensor>>;

  // What a request asked for, as long as any of it is not sent.
  struct Asked {
    std::shared_ptr<const ParsedKeys> keys;
    RequestBudget::Ticket ticket;
  };

  // What one answer takes.
  struct Part {
    std::vector<size_t> positions;
    std::vector<Slot> slots;
    std::vector<tensorflow::Rendezvous::Args> send_args;
    Tensors tensors;
    // When each came, on the clock of TensorFlow's profiler; 0 for those that
    // came before they were asked for, or if that is not measured.
    std::vector<int64_t> arrived_ns;
    // If no tensor is there but some have failed: their error, and which.
    absl::Status status;
    std::vector<size_t> failed;
    // Is asked for again.
    Tensors rest;
  };

  // `step` owns it. Not OK: the step was aborted.
  PartialSends(StepRendezvous* step, const absl::Status& status)
      : step_(step), status_(status) {}

  // All tensors of a request, by position; wakes `asker` when one is there.
  // Start() has to follow. Errors: InvalidArgument if the rest of an answer is
  // asked for that left none, or twice, or if there are too many in all.
  absl::Status Open(std::shared_ptr<const Asked> request,
                    const std::shared_ptr<Asker>& asker, Tensors* tensors);
  // Starts to receive those that are new. REQUIRES: a reference to the step.
  void Start(const Tensors& tensors);

  // Takes what is there. Does not wake `asker` any more.
  Part Take(Tensors tensors);
  // Keeps what the answer to `request_id` left.
  void Keep(int64_t request_id, Tensors rest);
  // Nobody will ask for these again.
  void Drop(const Tensors& tensors);

  // Fails what is there and what comes; what waits is failed by the step.
  void Abort(const absl::Status& status);
  // Not OK once it was aborted.
  absl::Status status();

  static const tensorflow::Rendezvous::ParsedKey& KeyOf(const Tensor& tensor);

 private:
  void Arrive(const std::shared_ptr<Tensor>& tensor, const absl::Status& status,
              const tensorflow::Rendezvous::Args& args,
              const tensorflow::Tensor& value, bool is_dead);

  StepRendezvous* const step_;
  absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  // What answers left, by the id of their requests.
  absl::flat_hash_map<int64_t, Tensors> rests_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_SENDER_PARTIAL_SENDS_H_
