// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Makes the kernel probe the other host of a TCP connection. A host that lost
// power leaves connections on which nothing comes, and who only reads would
// wait for ever. A host's kernel answers for a process that is stopped or busy.

#ifndef TF_FUSE_CC_CHANNEL_SOCKET_KEEP_ALIVE_H_
#define TF_FUSE_CC_CHANNEL_SOCKET_KEEP_ALIVE_H_

#include <cstdint>

namespace tf_fuse {

// Makes the kernel ask the other host on a TCP connection that was silent for
// 20 s, and end the connection when no answer has come for as long again.
void KeepAlive(int fd);

// Ends the connection, too, when something that was sent is not acknowledged
// for 40 s. Only for who sends little: the kernel counts the time in which a
// stopped process leaves no room for more.
void LimitUnacknowledged(int fd);

// As KeepAlive(), for all TCP connections that this process has to a port,
// whoever made them: those of gRPC. Returns how many there are.
int KeepAliveToPort(uint16_t port);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_SOCKET_KEEP_ALIVE_H_
