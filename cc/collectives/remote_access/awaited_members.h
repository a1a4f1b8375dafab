// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Answers which members the collectives of this process wait for. A member that
// has waited too long asks the others, since the one that it waits for may
// itself wait for the one that has stopped.

#ifndef TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_AWAITED_MEMBERS_H_
#define TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_AWAITED_MEMBERS_H_

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "channel/chunk_source.h"

namespace tf_fuse {

// The size of the answer to a question: a byte for each member up to so many.
constexpr uint64_t kWaitsBytes = 1024;

// What stages of a collective add to its key, after the first one. Who waits in
// one stage may wait for a member that is still in another one.
constexpr char kSumsStage[] = ":sums";
constexpr char kGatherStage[] = ":gather";

// Makes known whom `device` waits for in a collective, until what is returned
// goes. `late` may be called at any time until then, and locks what it needs.
// A device may be in several stages of one collective, or in two executions.
std::shared_ptr<void> RegisterWaits(const std::string& collective,
                                    const std::string& device,
                                    std::function<std::set<int>()> late);

// The key of the chunk in which a producer answers a question of member `who`;
// `number` is another one for each question of this process.
std::string WaitsKey(const std::string& collective, int who, uint64_t number);

// Answers at once if `key` is a question, and the device is in the collective.
// (Else the answer is the abort of the step's collectives.)
bool AnswerWaits(const ChunkKey& key, const PostedDone& done);

// The members in an answer of kWaitsBytes.
std::set<int> WaitsIn(const char* answer);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_AWAITED_MEMBERS_H_
