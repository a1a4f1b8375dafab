// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/remote_access/compare_operands.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tf_fuse {

namespace {

// Of collectives that never begin here.
constexpr size_t kMaxEarly = 1000;

absl::Status Differ(const std::string& consumer, const std::string& its,
                    const std::string& producer, const std::string& other) {
  return absl::InvalidArgumentError(
      absl::StrCat("The members of a collective must agree: ", consumer,
                   " put in ", its, ", ", producer, " put in ", other));
}

}  // namespace

absl::Status Operands::Announce(const std::string& collective,
                                const std::string& operand,
                                const std::string& device) {
  absl::MutexLock lock(&mu_);
  const Key key(collective, device);
  announced_[key] = operand;
  auto found = early_.find(key);
  if (found == early_.end()) return absl::OkStatus();
  const Early early = std::move(found->second);
  early_.erase(found);
  if (early.operand == operand) return absl::OkStatus();
  return Differ(early.consumer, early.operand, device, operand);
}

void Operands::Retract(const std::string& collective,
                       const std::string& device) {
  absl::MutexLock lock(&mu_);
  announced_.erase(Key(collective, device));
}

absl::Status Operands::Compare(const std::string& collective,
                               const std::string& operand,
                               const std::string& consumer,
                               const std::string& producer) {
  absl::MutexLock lock(&mu_);
  const Key key(collective, producer);
  auto found = announced_.find(key);
  if (found == announced_.end()) {
    auto early = early_.find(key);
    if (early != early_.end() && early->second.operand != operand) {
      return Differ(consumer, operand, early->second.consumer,
                    early->second.operand);
    }
    if (early_.size() < kMaxEarly) early_[key] = {operand, consumer};
    return absl::OkStatus();
  }
  if (found->second == operand) return absl::OkStatus();
  return Differ(consumer, operand, producer, found->second);
}

}  // namespace tf_fuse
