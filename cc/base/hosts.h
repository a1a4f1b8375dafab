// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Which tasks share a host, and what that leaves of overlap. The standard
// library only.

#ifndef TF_FUSE_CC_BASE_HOSTS_H_
#define TF_FUSE_CC_BASE_HOSTS_H_

#include <map>
#include <string>

namespace tf_fuse {

// The host of an address, "host:port" or "[v6]:port"; "localhost" for each name
// of the loopback.
std::string HostOfAddress(const std::string& address);

struct Hosts {
  // Task ("/job:ps/replica:0/task:0") to host. A task that is not there has a
  // host of its own.
  std::map<std::string, std::string> of_task;
  // Of each host; those of other hosts are not known.
  int cores = 0;

  // The part of a transfer between two tasks that goes on beside computing. 1
  // between hosts. On one host a transfer takes cores as well: 0 if it has no
  // more of them than tasks, which compute, and 1 from twice as many.
  double Overlap(const std::string& send_task,
                 const std::string& recv_task) const;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_BASE_HOSTS_H_
