// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Which instances of collectives no call uses, so that a resolver can forget
// them.

#ifndef TF_FUSE_CC_COLLECTIVES_RUNTIME_IDLE_INSTANCES_H_
#define TF_FUSE_CC_COLLECTIVES_RUNTIME_IDLE_INSTANCES_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <tuple>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace tf_fuse {

// Says which instances of collectives a resolver can forget. TensorFlow's
// resolver keeps a record of each, some 1.1 KB, until it is destroyed, and
// MultiWorkerMirroredStrategy has a new instance for each collective of each
// step.
class IdleInstances {
 public:
  // Group, step and instance.
  using Key = std::tuple<int32_t, int64_t, int32_t>;

  // A call asks for the instance. To be called before TensorFlow looks it up.
  void Begin(const Key& key) {
    absl::MutexLock lock(&mu_);
    Uses& uses = uses_[key];
    if (uses.calls++ == 0 && uses.is_idle) idle_.erase(uses.place);
    uses.is_idle = false;
  }

  // The call has ended. Calls `forget` with each instance that no call uses,
  // except for the latest; a new call for it waits until `forget` returns.
  void End(const Key& key, absl::FunctionRef<void(const Key&)> forget) {
    absl::MutexLock lock(&mu_);
    Uses& uses = uses_[key];
    if (--uses.calls > 0) return;
    uses.is_idle = true;
    uses.place = idle_.insert(idle_.end(), key);
    while (idle_.size() > kKept && !is_stopped_) {
      forget(idle_.front());
      uses_.erase(idle_.front());
      idle_.pop_front();
    }
  }

  // Nothing is forgotten from now on.
  void Stop() {
    absl::MutexLock lock(&mu_);
    is_stopped_ = true;
  }

 private:
  // A program whose instances have fixed keys uses the same again and again,
  // and rarely has more.
  static constexpr size_t kKept = 1000;
  struct Uses {
    int calls = 0;
    bool is_idle = false;
    std::list<Key>::iterator place;  // In idle_.
  };

  absl::Mutex mu_;
  std::map<Key, Uses> uses_ ABSL_GUARDED_BY(mu_);
  std::list<Key> idle_ ABSL_GUARDED_BY(mu_);  // The oldest first.
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_RUNTIME_IDLE_INSTANCES_H_
