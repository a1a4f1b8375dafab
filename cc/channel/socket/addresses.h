// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Parses and looks up the addresses of sockets and the names of hosts.

#ifndef TF_FUSE_CC_CHANNEL_SOCKET_ADDRESSES_H_
#define TF_FUSE_CC_CHANNEL_SOCKET_ADDRESSES_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tf_fuse {

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  sockaddr_in* v4() { return reinterpret_cast<sockaddr_in*>(&storage); }
  sockaddr_in6* v6() { return reinterpret_cast<sockaddr_in6*>(&storage); }
  in_port_t* port() {
    return family() == AF_INET ? &v4()->sin_port : &v6()->sin6_port;
  }
  bool is_loopback() {
    return family() == AF_INET
               ? ntohl(v4()->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
               : IN6_IS_ADDR_LOOPBACK(&v6()->sin6_addr);
  }
  std::string text() const;
};
using Addresses = std::vector<Address>;

struct HostAndPort {
  std::string host;
  std::string port;
};

// In the abstract namespace of Unix sockets.
absl::StatusOr<Address> UnixAddress(const std::string& name);

// Of "HOST:PORT".
absl::StatusOr<HostAndPort> Split(const std::string& text);

// Of a host that is given by its address.
absl::StatusOr<Addresses> LookUpNumber(const HostAndPort& where);
// Of a name. Errors: Unavailable, DeadlineExceeded, ResourceExhausted.
absl::StatusOr<Addresses> LookUpName(const HostAndPort& where,
                                     absl::Time deadline);
// Of either.
absl::StatusOr<Addresses> Resolve(const HostAndPort& where,
                                  absl::Time deadline);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_SOCKET_ADDRESSES_H_
