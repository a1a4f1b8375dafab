// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/socket/keep_alive.h"

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "absl/strings/numbers.h"

namespace tf_fuse {

namespace {

constexpr int kSilentSeconds = 20;
constexpr int kProbeSeconds = 5;

void Set(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

// Of the other side of a TCP connection; 0 for other descriptors.
uint16_t PeerPort(int fd) {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  int type = 0;
  socklen_t type_size = sizeof(type);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
      getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0 ||
      type != SOCK_STREAM) {
    return 0;
  }
  if (peer.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&peer)->sin_port);
  }
  if (peer.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_port);
  }
  return 0;
}

}  // namespace

void KeepAlive(int fd) {
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kSilentSeconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kSilentSeconds / kProbeSeconds);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

void LimitUnacknowledged(int fd) {
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 2 * kSilentSeconds * 1000);
}

int KeepAliveToPort(uint16_t port) {
  int count = 0;
  DIR* const descriptors = port == 0 ? nullptr : opendir("/proc/self/fd");
  if (descriptors == nullptr) return count;
  while (const dirent* entry = readdir(descriptors)) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry->d_name, &fd) || PeerPort(fd) != port) continue;
    KeepAlive(fd);
    ++count;
  }
  closedir(descriptors);
  return count;
}

}  // namespace tf_fuse
