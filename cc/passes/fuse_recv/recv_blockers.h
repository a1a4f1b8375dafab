// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Finds reasons to leave a receive alone in the receive itself.

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_RECV_BLOCKERS_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_RECV_BLOCKERS_H_

#include <string>

#include "passes/fuse_recv/options.h"
#include "passes/view/liveness.h"
#include "passes/view/partition_view.h"

namespace tf_fuse {

// The reason to leave a receive alone that lies in the receive itself, or "".
std::string FindBlocker(const PartitionView& view, const Liveness& liveness,
                        const Receive& receive, const AnalysisOptions& options);

// Whether the sender would refuse the rendezvous key of this receive.
bool IsKeyTooLong(const Receive& receive, const AnalysisOptions& options);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_RECV_BLOCKERS_H_
