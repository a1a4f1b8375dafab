// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Serves the chunks of this process to other processes over data channels: one
// server per process, whatever tasks it has.

#ifndef TF_FUSE_CC_CHANNEL_CHUNK_SERVER_H_
#define TF_FUSE_CC_CHANNEL_CHUNK_SERVER_H_

#include <string>

#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

// Starts it, if it does not run yet, on the paths that are allowed, and fills
// in the fields of the card that lead to it. `host` is the name or address by
// which other hosts reach this one. A path that cannot be had is left out, with
// a line in the log.
void FillInDataPaths(const std::string& host, v1::PeerCard* card);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_CHUNK_SERVER_H_
