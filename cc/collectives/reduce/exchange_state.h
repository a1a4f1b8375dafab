// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Keeps what the callbacks of a DirectExchange note, for the thread that waits.

#ifndef TF_FUSE_CC_COLLECTIVES_REDUCE_EXCHANGE_STATE_H_
#define TF_FUSE_CC_COLLECTIVES_REDUCE_EXCHANGE_STATE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tf_fuse {

// What callbacks note; they may come when the exchange is gone.
struct ExchangeState {
  absl::Mutex mu;
  absl::CondVar changed;
  absl::Status status ABSL_GUARDED_BY(mu);
  uint64_t events ABSL_GUARDED_BY(mu) = 0;
  int takes ABSL_GUARDED_BY(mu) = 0;  // Under way.
  int posts ABSL_GUARDED_BY(mu) = 0;
  // Members, once for each take and each post that has not ended.
  std::multiset<int> producers ABSL_GUARDED_BY(mu);
  std::multiset<int> consumers ABSL_GUARDED_BY(mu);
  std::set<int> checked ABSL_GUARDED_BY(mu);  // Is being done.
  std::set<int> asked ABSL_GUARDED_BY(mu);    // Whether they have failed.
  // Whom other members wait for, as far as they have said.
  std::map<int, std::set<int>> waits ABSL_GUARDED_BY(mu);
  tensorflow::CancellationManager asking;  // Until the exchange ends.
  char nothing = 0;                        // Where no byte ever comes.

  void Note(const absl::Status& error) {
    absl::MutexLock lock(&mu);
    NoteLocked(error);
  }
  void NotePost(int to, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    consumers.erase(consumers.find(to));
    --posts;
    NoteLocked(error);
  }
  // Members whose pieces have not come, or who have not taken this one's.
  std::set<int> Late() {
    absl::MutexLock lock(&mu);
    std::set<int> members(producers.begin(), producers.end());
    members.insert(consumers.begin(), consumers.end());
    return members;
  }
  // A take has ended. The exchange may go as soon as the lock is free.
  void NoteTake(int from, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    producers.erase(producers.find(from));
    --takes;
    NoteLocked(error);
  }

 private:
  void NoteLocked(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (status.ok()) status = error;
    ++events;
    changed.SignalAll();
  }
};

// An error that a member reported, with the name of the member.
inline absl::Status FromMember(const absl::Status& status,
                               const std::string& who) {
  if (status.ok() || absl::IsCancelled(status)) return status;
  absl::Status named(status.code(),
                     absl::StrCat("From ", who, ": ", status.message()));
  status.ForEachPayload([&named](absl::string_view url, const absl::Cord& x) {
    named.SetPayload(url, x);
  });
  return named;
}

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REDUCE_EXCHANGE_STATE_H_
