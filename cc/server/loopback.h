// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Lets the server of a cluster on one host listen where only that host can
// connect.

#ifndef TF_FUSE_CC_SERVER_LOOPBACK_H_
#define TF_FUSE_CC_SERVER_LOOPBACK_H_

namespace grpc {
class ServerBuilder;
}
namespace tensorflow {
class ServerDef;
}

namespace tf_fuse {

// Whether no other host can reach any task of a cluster by its address: each is
// localhost, 127.0.0.1 or ::1. (A cluster of one task may be meant for clients
// that know its host by another name, unless the variable TF_FUSE_ONE_HOST says
// that all of the job is here.)
bool IsOnLoopback(const tensorflow::ServerDef& server_def);

// Changes the ports of a server: each listens on 127.0.0.1 and ::1, where the
// host has them, in place of all interfaces.
void ListenOnLoopback(grpc::ServerBuilder* builder);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_SERVER_LOOPBACK_H_
