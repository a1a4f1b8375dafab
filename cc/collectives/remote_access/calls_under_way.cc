// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/remote_access/calls_under_way.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"

namespace tf_fuse {

bool UnderWay::Call::operator<(const Call& other) const {
  return std::tie(step_id, group_key, prefix) <
         std::tie(other.step_id, other.group_key, other.prefix);
}

std::shared_ptr<void> UnderWay::Begin(Call call) {
  absl::MutexLock lock(&mu_);
  calls_.insert(call);
  if (!retired_.ok()) at_end_.insert(call);
  return std::shared_ptr<void>(
      nullptr, [self = shared_from_this(), call = std::move(call)](void*) {
        self->End(call);
      });
}

void UnderWay::End(const Call& call) {
  absl::MutexLock lock(&mu_);
  calls_.erase(calls_.find(call));
}

void UnderWay::Retire(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  retired_ = why;
  at_end_.insert(calls_.begin(), calls_.end());
}

absl::Status UnderWay::retired() const {
  absl::MutexLock lock(&mu_);
  return retired_;
}

bool UnderWay::HasChunk(int64_t step_id, absl::string_view key) const {
  return Has([&](const Call& call) {
    return call.step_id == step_id && absl::StartsWith(key, call.prefix);
  });
}

bool UnderWay::HasGroup(int32_t group_key) const {
  return Has([&](const Call& call) { return call.group_key == group_key; });
}

bool UnderWay::HasStep(int64_t step_id) const {
  return Has([&](const Call& call) { return call.step_id == step_id; });
}

bool UnderWay::Has(absl::FunctionRef<bool(const Call&)> which) const {
  absl::MutexLock lock(&mu_);
  return std::any_of(calls_.begin(), calls_.end(), which) ||
         std::any_of(at_end_.begin(), at_end_.end(), which);
}

size_t UnderWay::AwaitEnd(absl::Time deadline) {
  auto none = [this]()
                  ABSL_NO_THREAD_SAFETY_ANALYSIS { return calls_.empty(); };
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithDeadline(absl::Condition(&none), deadline);
  return calls_.size();
}

}  // namespace tf_fuse
