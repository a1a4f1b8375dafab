// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tracks the calls of collectives that one manager's executors have begun. When
// the manager is retired, what peers ask of these ends with them; what they ask
// of collectives that have not begun here waits for the next manager.

#ifndef TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_CALLS_UNDER_WAY_H_
#define TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_CALLS_UNDER_WAY_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tf_fuse {

// Made by std::make_shared.
class UnderWay : public std::enable_shared_from_this<UnderWay> {
 public:
  struct Call {
    int64_t step_id = 0;
    int32_t group_key = 0;
    // With which the keys of its chunks begin.
    std::string prefix;

    bool operator<(const Call& other) const;
  };

  // Notes a call. It ends when what is returned goes.
  std::shared_ptr<void> Begin(Call call);

  // From now on all calls end with `why`. It stays known which were under way.
  void Retire(const absl::Status& why);
  absl::Status retired() const;

  // Whether a call is under way, or was when the manager was retired or later:
  // one that has this chunk, one in this group, one in this step.
  bool HasChunk(int64_t step_id, absl::string_view key) const;
  bool HasGroup(int32_t group_key) const;

  bool HasStep(int64_t step_id) const;

  // Waits for the end of all calls, but not for longer. Returns how many are
  // left.
  size_t AwaitEnd(absl::Time deadline);

 private:
  void End(const Call& call);
  bool Has(absl::FunctionRef<bool(const Call&)> which) const;

  mutable absl::Mutex mu_;
  std::multiset<Call> calls_ ABSL_GUARDED_BY(mu_);
  std::set<Call> at_end_
      ABSL_GUARDED_BY(mu_);  // When it was retired, or since.
  absl::Status retired_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_CALLS_UNDER_WAY_H_
