// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// DirectExchange: whom it waits for, and whether they live, have failed, or
// wait for others.

#include <atomic>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/reduce/exchange_state.h"
#include "collectives/reduce/point_to_point.h"
#include "collectives/remote_access/awaited_members.h"

namespace tf_fuse {

namespace {

constexpr absl::Duration kHealthTimeout = absl::Seconds(10);

}  // namespace

std::string DirectExchange::WaitedFor() const {
  auto names = [this](const std::set<int>& members) {
    return absl::StrJoin(members, ", ", [this](std::string* out, int member) {
      absl::StrAppend(out, NameOf(member));
    });
  };
  const std::set<int> silent = Silent();
  return absl::StrCat(names(state_->Late()), silent.empty() ? "" : "; ",
                      names(silent),
                      silent.empty() ? "" : " has not come or does not answer");
}

std::set<int> DirectExchange::Silent() const {
  std::set<int> silent, seen = {rank()}, next = state_->Late();
  absl::MutexLock lock(&state_->mu);
  while (!next.empty()) {
    const int member = *next.begin();
    next.erase(next.begin());
    if (!seen.insert(member).second) continue;
    auto found = state_->waits.find(member);
    if (found == state_->waits.end()) {
      // Others run no plugin that could say anything.
      if (questioned_.count(member) > 0) silent.insert(member);
    } else {
      next.insert(found->second.begin(), found->second.end());
    }
  }
  silent.erase(silent.lower_bound(size()), silent.end());
  return silent;
}

void DirectExchange::AskWhomTheyWaitFor() {
  static std::atomic<uint64_t> questions{0};
  for (int member = 0; member < size(); ++member) {
    if (member == rank() || !Reaches(member)) continue;
    questioned_.insert(member);
    auto answer = std::make_shared<std::string>(kWaitsBytes, '\0');
    ChunkKey chunk;
    chunk.key = WaitsKey(context_->exec_key, rank(), questions.fetch_add(1));
    chunk.bytes = kWaitsBytes;
    tensorflow::CollectiveExecutor* const executor = context_->col_exec;
    executor->Ref();  // The answer may come when the operation is over.
    access_->Take(params().group.members[member], chunk, answer->data(),
                  &state_->asking,
                  [executor, answer, member,
                   who = absl::StrCat(NameOf(member), " of ", size()),
                   state = state_](const absl::Status& status) {
                    if (status.ok()) {
                      absl::MutexLock lock(&state->mu);
                      state->waits[member] = WaitsIn(answer->data());
                    } else if (!absl::IsCancelled(status)) {
                      state->Note(FromMember(status, who));
                    }
                    executor->Unref();
                  });
  }
}

void DirectExchange::CheckMembers() {
  for (int member = 0; member < size(); ++member) AskWhetherFailed(member);
  std::set<int> members = state_->Late();
  {
    absl::MutexLock lock(&state_->mu);
    for (int member : state_->checked) members.erase(member);
    state_->checked.insert(members.begin(), members.end());
  }
  tensorflow::CollectiveExecutor* const executor = context_->col_exec;
  for (int member : members) {
    const tensorflow::CollGroupMember& who = params().group.members[member];
    if (who.is_local) continue;
    executor->Ref();  // The answer may come when the operation is over.
    const std::string name = who.device.name();
    executor->remote_access()->CheckPeerHealth(
        who.task, absl::ToInt64Milliseconds(kHealthTimeout),
        [executor, member, name, state = state_](const absl::Status& status) {
          // One that does not answer may have stopped, and go on: the kernel
          // takes connections for it. gRPC gives up a new one after 20 s.
          const bool silent =
              absl::IsDeadlineExceeded(status) ||
              absl::StrContains(status.message(),
                                "timed out before receiving SETTINGS frame");
          const bool lost = !status.ok() && !silent;
          {
            absl::MutexLock lock(&state->mu);
            state->checked.erase(member);
          }
          if (lost) {
            state->Note(absl::Status(
                status.code(), absl::StrCat("Member ", member, " (", name,
                                            ") is lost: ", status.message())));
          }
          executor->Unref();
        });
  }
}

void DirectExchange::AskWhetherFailed(int member) {
  if (params().group.members[member].is_local || !Reaches(member)) return;
  {
    absl::MutexLock lock(&state_->mu);
    if (!state_->asked.insert(member).second) return;
  }
  // The same collective may run again while the producer still has a question
  // of this one, so each has a number.
  static std::atomic<uint64_t> questions{0};
  ChunkKey chunk;
  chunk.key =
      Key(absl::StrCat("failed", questions.fetch_add(1)), member, rank());
  tensorflow::CollectiveExecutor* const executor = context_->col_exec;
  executor->Ref();  // The answer may come when the operation is over.
  access_->Take(params().group.members[member], chunk, &state_->nothing,
                &state_->asking,
                [executor, who = absl::StrCat(NameOf(member), " of ", size()),
                 state = state_](const absl::Status& status) {
                  if (!absl::IsCancelled(status))
                    state->Note(FromMember(status, who));
                  executor->Unref();
                });
}

}  // namespace tf_fuse
