// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/sender/request_budget.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/metrics.h"

namespace tf_fuse {

namespace {

// Measured as growth of the resident memory of a server with thousands of such
// requests, and rounded up: 18 KB for gRPC's, TensorFlow's and our call, and
// beside its text 545 bytes for each parsed key, its slot, and the receive that
// waits.
constexpr uint64_t kBytesOfRequest = 20 << 10;
constexpr uint64_t kBytesOfKey = 600;
// 711 bytes if they are asked for by parts.
constexpr uint64_t kBytesOfKeyByParts = 800;

absl::Status Exhausted(const std::string& what, int64_t step_id, uint64_t limit,
                       const char* variable) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "fused receive of step ", step_id, ": this task has ", what,
      ", and the limit is ", limit, "; ", variable, " on this task raises it"));
}

}  // namespace

uint64_t RequestCost(const RequestSize& size, bool by_parts) {
  // The message is kept until its answer, the text of a key with the key.
  return kBytesOfRequest + size.message_bytes + size.key_bytes +
         size.keys * (by_parts ? kBytesOfKeyByParts : kBytesOfKey);
}

RequestBudget::Ticket& RequestBudget::Ticket::operator=(
    Ticket&& other) noexcept {
  if (this == &other) return *this;
  Release();
  budget_ = std::exchange(other.budget_, nullptr);
  step_id_ = other.step_id_;
  bytes_ = other.bytes_;
  has_request_ = other.has_request_;
  return *this;
}

void RequestBudget::Ticket::Release() {
  if (budget_ == nullptr) return;
  ReleaseRequest();
  std::exchange(budget_, nullptr)->ReleaseBytes(bytes_);
}

void RequestBudget::Ticket::ReleaseRequest() {
  if (budget_ != nullptr && std::exchange(has_request_, false)) {
    budget_->ReleaseRequest(step_id_);
  }
}

absl::StatusOr<RequestBudget::Ticket> RequestBudget::Admit(int64_t step_id,
                                                           uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  if (requests_ >= limits_.requests) {
    return Exhausted(absl::StrCat(requests_, " pending fused requests"),
                     step_id, limits_.requests, kMaxPendingRequestsVariable);
  }
  const auto it = of_step_.find(step_id);
  const uint64_t of_step = it == of_step_.end() ? 0 : it->second;
  if (of_step >= limits_.requests_per_step) {
    return Exhausted(
        absl::StrCat(of_step, " pending fused requests of that step"), step_id,
        limits_.requests_per_step, kMaxPendingRequestsVariable);
  }
  if (bytes > limits_.bytes || bytes_ > limits_.bytes - bytes) {
    return Exhausted(absl::StrCat("pending fused requests of ", bytes_,
                                  " bytes, this one takes ", bytes, " more"),
                     step_id, limits_.bytes, kMaxPendingBytesVariable);
  }
  ++requests_;
  bytes_ += bytes;
  of_step_[step_id] = of_step + 1;
  Metrics* metrics = Metrics::Get();
  metrics->pending_requests.fetch_add(1);
  metrics->pending_bytes.fetch_add(static_cast<int64_t>(bytes));
  return Ticket(this, step_id, bytes);
}

void RequestBudget::ReleaseRequest(int64_t step_id) {
  absl::MutexLock lock(&mu_);
  --requests_;
  const auto it = of_step_.find(step_id);
  if (--it->second == 0) of_step_.erase(it);
  Metrics::Get()->pending_requests.fetch_sub(1);
}

void RequestBudget::ReleaseBytes(uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  bytes_ -= bytes;
  Metrics::Get()->pending_bytes.fetch_sub(static_cast<int64_t>(bytes));
}

RequestBudget* RequestBudget::Get() {
  static RequestBudget* budget = new RequestBudget(
      {MaxPendingRequests(), MaxPendingRequestsPerStep(), MaxPendingBytes()});
  return budget;
}

}  // namespace tf_fuse
