// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Finds receives that a function does without: they only say that another task
// has come so far, as after an update, and only the function's end waits for
// them. Looks at the graph, changes nothing.

#ifndef TF_FUSE_CC_PASSES_ACKNOWLEDGEMENTS_ACKNOWLEDGEMENTS_H_
#define TF_FUSE_CC_PASSES_ACKNOWLEDGEMENTS_ACKNOWLEDGEMENTS_H_

#include <vector>

#include "passes/view/partition_view.h"

namespace tf_fuse {

// A function ends when each of its partitions has ended, with the error of the
// first that fails. So a receive says nothing new if
// * no operation computes with its value, and whatever waits for it only hands
//   other values to the function's end;
// * what its sender waits for runs without it, since it has side effects: the
//   others in a partition run only if something needs them;
// * it runs once in each step, and is never dead.
//
// A session's master may end a step while a partition still runs, so this is
// not for sessions. Returns receives of `view`, in its order.
std::vector<const Receive*> FindAcknowledgements(const PartitionView& view);

// The receive, and the operations Identity that its value goes through. Empty
// if something else reads the value.
std::vector<tensorflow::Node*> CarriersOf(tensorflow::Node* receive);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_ACKNOWLEDGEMENTS_ACKNOWLEDGEMENTS_H_
