// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Counts the updates of this process's variables: how often each was updated,
// how long updates waited for each other, and how stale their gradients were.

#ifndef TF_FUSE_CC_UPDATE_UPDATE_COUNTERS_H_
#define TF_FUSE_CC_UPDATE_UPDATE_COUNTERS_H_

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace tf_fuse {

class UpdateLog {
 public:
  // Of staleness: bucket 0 has 0, bucket i has 2^(i-1) to 2^i - 1, the last one
  // has all above, too.
  static constexpr int kBuckets = 16;
  // How many variables are counted by name, and how many workers. The others
  // are counted together, under the name "".
  static constexpr size_t kMostNames = 10'000;

  // Of this process.
  static UpdateLog* Get();

  // One update of a variable.
  struct Update {
    std::string variable;
    // The task in whose step it was ("/job:worker/replica:0/task:0"), "" if
    // that is not known.
    std::string worker;
    // Updates of the variable when the step began; below zero if not known.
    int64_t begun = -1;
    // For the variables' locks.
    int64_t waited_us = 0;
    // With the locks.
    int64_t took_ns = 0;
  };

  // Updates of a variable so far.
  int64_t Count(const std::string& variable) const;
  // Updates that others made between `begun` and this one are its staleness.
  void Add(const Update& update);

  // {"variables": {NAME: {"updates", "update_us", "waits", "wait_us",
  //                       "max_wait_us"}},
  //  "workers": {TASK: {"updates", "staleness_sum", "staleness_max",
  //                     "staleness": [updates by bucket]}}}
  std::string ToJson() const;

 private:
  struct Variable {
    int64_t updates = 0;
    int64_t took_ns = 0;
    int64_t waits = 0;
    int64_t wait_us = 0;
    int64_t max_wait_us = 0;
  };
  struct Worker {
    int64_t updates = 0;
    int64_t sum = 0;
    int64_t max = 0;
    std::array<int64_t, kBuckets> buckets{};
  };

  template <typename T>
  static T& In(std::map<std::string, T>* all, const std::string& name);

  mutable std::mutex mu_;
  std::map<std::string, Variable> variables_;
  std::map<std::string, Worker> workers_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_UPDATE_COUNTERS_H_
