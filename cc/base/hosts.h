// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The host of a task's address. The standard library only.

#ifndef TF_FUSE_CC_BASE_HOSTS_H_
#define TF_FUSE_CC_BASE_HOSTS_H_

#include <string>

namespace tf_fuse {

// The host of an address, "host:port" or "[v6]:port"; "localhost" for each name
// of the loopback.
std::string HostOfAddress(const std::string& address);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_BASE_HOSTS_H_
