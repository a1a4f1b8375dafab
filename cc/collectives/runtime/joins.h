// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Which devices of other tasks joined a group again, until this task uses the
// group.

#ifndef TF_FUSE_CC_COLLECTIVES_RUNTIME_JOINS_H_
#define TF_FUSE_CC_COLLECTIVES_RUNTIME_JOINS_H_

#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/device_attributes.pb.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace tf_fuse {

// Devices of other tasks that joined a group of this task's once more, which
// this task has not used since. They have begun anew, and this task has not:
// when it does, they will not ask again for what they have got: the group, and
// who sends a broadcast.
class Joins {
 public:
  struct Join {
    tensorflow::DeviceAttributes device;
    tensorflow::CollGroupParams group;
    std::vector<tensorflow::CompleteInstanceRequest> broadcasts;
  };

  // A device comes to a group. What is returned is for Add(): how often this
  // task has used the group. If the device has begun anew itself, its earlier
  // joins are void.
  uint64_t Come(const tensorflow::DeviceAttributes& device, int32_t group_key) {
    absl::MutexLock lock(&mu_);
    for (auto it = joins_.begin(); it != joins_.end();) {
      const tensorflow::DeviceAttributes& known = it->second.device;
      const bool is_void = known.name() == device.name() &&
                           known.incarnation() != device.incarnation();
      it = is_void ? joins_.erase(it) : std::next(it);
    }
    auto found = uses_.find(group_key);
    return found == uses_.end() ? 0 : found->second;
  }
  // Nothing if this task has used the group since: it knows the device.
  void Add(Join join, uint64_t uses) {
    absl::MutexLock lock(&mu_);
    const Key key(join.group.group_key, join.device.name());
    auto found = uses_.find(join.group.group_key);
    if (found != uses_.end() && found->second != uses) return;
    if (joins_.size() >= kMaxJoins) return;
    joins_.insert_or_assign(key, std::move(join));
  }
  // A request for a broadcast was answered. Nothing if its device has no join.
  void AddBroadcast(const tensorflow::CompleteInstanceRequest& request);
  // Keeps what follows the error of a request for an instance until this task
  // uses the group or begins anew: it may be meant for what this task begins
  // next, and differ from what it began before. Returns false, and keeps
  // nothing, if the device has no join or `is_current` says no.
  bool KeepError(const tensorflow::CompleteInstanceRequest& request,
                 absl::FunctionRef<bool()> is_current,
                 std::function<void()> next);
  // This task uses the group.
  void CountUse(int32_t group_key);
  // This task begins anew, or its collectives have failed.
  void GoOn();
  // They stay until this task uses their groups: it may begin anew twice.
  std::vector<Join> All() const;

 private:
  static constexpr size_t kMaxJoins = 10000;
  using Key = std::pair<int64_t, std::string>;

  mutable absl::Mutex mu_;
  std::map<Key, Join> joins_ ABSL_GUARDED_BY(mu_);
  std::map<int32_t, uint64_t> uses_ ABSL_GUARDED_BY(mu_);  // By group.
  // By group.
  std::multimap<int32_t, std::function<void()>> errors_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_RUNTIME_JOINS_H_
