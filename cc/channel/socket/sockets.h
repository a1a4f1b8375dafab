// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Opens the sockets of data channels. An address is "unix:NAME" in the abstract
// namespace of Unix sockets, which leaves nothing behind when a process dies,
// and which only processes of the same network namespace see; or "HOST:PORT",
// where HOST is a name, an IPv4 address, or an IPv6 address in brackets.

#ifndef TF_FUSE_CC_CHANNEL_SOCKET_SOCKETS_H_
#define TF_FUSE_CC_CHANNEL_SOCKET_SOCKETS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tf_fuse {

// Blocks until `deadline`, at the latest. Of a name's addresses the first that
// answers is taken. Errors: Unavailable, DeadlineExceeded.
absl::StatusOr<int> ConnectTo(const std::string& address, absl::Time deadline);

// Listens; `address` is changed to where: port 0 is any. Returns a socket for
// each address that a name has, all at one port. Where a name other than
// localhost means loopback on its own host (Debian's 127.0.1.1), others know it
// by an address that this host cannot look up: then it listens at all of them,
// as TensorFlow's server does. Errors: Unavailable, DeadlineExceeded.
absl::StatusOr<std::vector<int>> ListenAt(std::string* address);

// -1 if there is none now, or none can be had; then the next function tells
// whether for want of descriptors.
int AcceptFrom(int listener);
bool IsOutOfDescriptors();

// To be closed when there is no other; -1 if there is none already.
int SpareDescriptor();

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_SOCKET_SOCKETS_H_
