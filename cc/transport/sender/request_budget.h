// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What this task spends on the requests of its peers. A peer can send requests
// for steps that never begin and for tensors that nobody sends; nothing else
// would bound them.

#ifndef TF_FUSE_CC_TRANSPORT_SENDER_REQUEST_BUDGET_H_
#define TF_FUSE_CC_TRANSPORT_SENDER_REQUEST_BUDGET_H_

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "transport/message/receive_keys.h"

namespace tf_fuse {

// Bytes of memory that a pending request of this size takes, gRPC's part
// included, rounded up. `by_parts`: each of its tensors is kept by itself.
uint64_t RequestCost(const RequestSize& size, bool by_parts = false);

class RequestBudget {
 public:
  struct Limits {
    uint64_t requests;
    uint64_t requests_per_step;
    uint64_t bytes;
  };

  // Gives back what it holds when it is destroyed. The budget outlives it.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { Release(); }
    void Release();
    // Gives back the request, which was answered, but not its bytes: tensors
    // that it asked for are still to be sent.
    void ReleaseRequest();

   private:
    friend class RequestBudget;
    Ticket(RequestBudget* budget, int64_t step_id, uint64_t bytes)
        : budget_(budget), step_id_(step_id), bytes_(bytes) {}

    RequestBudget* budget_ = nullptr;
    int64_t step_id_ = 0;
    uint64_t bytes_ = 0;
    bool has_request_ = true;
  };

  explicit RequestBudget(const Limits& limits) : limits_(limits) {}

  // Errors: ResourceExhausted, with the limit and the variable to change.
  absl::StatusOr<Ticket> Admit(int64_t step_id, uint64_t bytes);

  // The budget of this process; never destroyed.
  static RequestBudget* Get();

 private:
  void ReleaseRequest(int64_t step_id);
  void ReleaseBytes(uint64_t bytes);

  const Limits limits_;
  absl::Mutex mu_;
  uint64_t requests_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Requests by step; steps without any are not in it.
  absl::flat_hash_map<int64_t, uint64_t> of_step_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_SENDER_REQUEST_BUDGET_H_
