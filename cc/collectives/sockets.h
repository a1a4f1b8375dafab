// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Sockets of data channels. An address is "unix:NAME" in the abstract namespace
// of Unix sockets, which leaves nothing behind when a process dies, and which
// only processes of the same network namespace see; or "HOST:PORT".

#ifndef TF_FUSE_CC_COLLECTIVES_SOCKETS_H_
#define TF_FUSE_CC_COLLECTIVES_SOCKETS_H_

#include <string>

#include "absl/status/statusor.h"

namespace tf_fuse {

// Blocks for some seconds at most. Errors: Unavailable.
absl::StatusOr<int> ConnectTo(const std::string& address);

// Listens; `address` is changed to where: port 0 is any. Errors: Unavailable.
absl::StatusOr<int> ListenAt(std::string* address);

// -1 if there is none now, or none can be had; then the next function tells
// whether for want of descriptors.
int AcceptFrom(int listener);
bool IsOutOfDescriptors();

// To be closed when there is no other; -1 if there is none already.
int SpareDescriptor();

void CloseSocket(int fd);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_SOCKETS_H_
