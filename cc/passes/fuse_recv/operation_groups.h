// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Decides which small operations of a partition run as one. Pure: looks at the
// graph, changes nothing.
//
// On a parameter server, each table of a model adds a lookup, an update and
// some sends to every step. Each takes less time than TensorFlow's executor
// needs to schedule it on a thread. One operation that runs them in turn, with
// the same kernels, has the same values, locks and errors.

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_OPERATION_GROUPS_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_OPERATION_GROUPS_H_

#include <functional>
#include <string>
#include <vector>

#include "passes/fuse_recv/plan.h"
#include "passes/view/liveness.h"
#include "passes/view/partition_view.h"

namespace tf_fuse {

// Plans the groups of all partitions whose task `runs_groups` accepts.
//
// Each operation is either *groupable* (kGroupable in the source: it neither
// blocks nor runs long, and is live in every step), or *early* (an argument, a
// constant: it waits for nothing but early ones), or *other*; all receives that
// `receives` fuses into one operation count as one. An operation *waits for*
// the nearest others above it. A group has groupable operations that wait for
// the same others.
//
// This closes no cycle. Let a path lead from an operation of a group to another
// one through something outside of the group. What is outside and groupable
// waits for the same others or more, so the path leads through an other that
// the second operation waits for, and thus the first as well: it would be above
// and below the first, which is a cycle already. Nor does it hold up anything
// across tasks: a group starts when the others that each of its operations
// needs have ended, and nothing in it blocks.
//
// Then the sends of a fused receive that are in no such group, and that nothing
// in their partition waits for, are a group, whatever they wait for. Only the
// receive comes after them, and it waits for each of them anyway.
std::vector<OperationGroup> PlanOperationGroups(
    const PartitionView& view, const Liveness& liveness,
    const FusePlan& receives,
    const std::function<bool(const std::string& task)>& runs_groups);

// Plans which tensors of a fused receive are sent at once, by one entry of the
// sender's rendezvous: those whose _Send nodes lie in one group of operations.
// The request waits for all of them anyway, and none may be dead. Puts the
// receives of a joint send next to each other, and those that are sent one by
// one last. REQUIRES: the groups are final.
void PlanJointSends(const PartitionView& view, FusePlan* plan);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_OPERATION_GROUPS_H_
