// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/runtime/joins.h"

namespace tf_fuse {

void Joins::AddBroadcast(const tensorflow::CompleteInstanceRequest& request) {
  absl::MutexLock lock(&mu_);
  auto found = joins_.find(Key(request.group_key(), request.device()));
  if (found == joins_.end()) return;
  if (found->second.broadcasts.size() >= kMaxJoins) return;
  found->second.broadcasts.push_back(request);
}

bool Joins::KeepError(const tensorflow::CompleteInstanceRequest& request,
                      absl::FunctionRef<bool()> is_current,
                      std::function<void()> next) {
  absl::MutexLock lock(&mu_);
  const Key key(request.group_key(), request.device());
  if (!is_current() || joins_.count(key) == 0) return false;
  errors_.emplace(request.group_key(), std::move(next));
  return true;
}

void Joins::CountUse(int32_t group_key) {
  std::vector<std::function<void()>> next;
  {
    absl::MutexLock lock(&mu_);
    ++uses_[group_key];
    joins_.erase(joins_.lower_bound(Key(group_key, "")),
                 joins_.lower_bound(Key(group_key + int64_t{1}, "")));
    const auto [begin, end] = errors_.equal_range(group_key);
    for (auto it = begin; it != end; ++it) next.push_back(it->second);
    errors_.erase(begin, end);
  }
  for (const std::function<void()>& one : next) one();
}

void Joins::GoOn() {
  std::multimap<int32_t, std::function<void()>> next;
  {
    absl::MutexLock lock(&mu_);
    next.swap(errors_);
  }
  for (const auto& [key, one] : next) one();
}

std::vector<Joins::Join> Joins::All() const {
  absl::MutexLock lock(&mu_);
  std::vector<Join> all;
  for (const auto& [key, join] : joins_) all.push_back(join);
  return all;
}

}  // namespace tf_fuse
