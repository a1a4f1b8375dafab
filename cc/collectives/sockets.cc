// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tf_fuse {

namespace {

constexpr time_t kConnectSeconds = 5;
constexpr int kBacklog = 128;
constexpr char kUnix[] = "unix:";

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  int family = AF_UNSPEC;
};

absl::Status Failed(const char* call, const std::string& address) {
  return absl::UnavailableError(absl::StrCat("data channel at ", address, ": ",
                                             call, ": ", std::strerror(errno)));
}

absl::StatusOr<Address> UnixAddress(const std::string& name) {
  Address result;
  auto* address = reinterpret_cast<sockaddr_un*>(&result.storage);
  if (name.empty() || name.size() + 1 >= sizeof(address->sun_path)) {
    return absl::UnavailableError(
        absl::StrCat("data channel: '", name, "' is no name of a socket"));
  }
  result.family = address->sun_family = AF_UNIX;
  // A zero byte first: the abstract namespace.
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  result.size = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  return result;
}

absl::StatusOr<Address> InternetAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    return absl::UnavailableError(
        absl::StrCat("data channel: '", text, "' is no host:port"));
  }
  std::string host = text.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.c_str(), text.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("data channel: host '", host, "': ", gai_strerror(error)));
  }
  Address result;
  result.size = found->ai_addrlen;
  result.family = found->ai_family;
  std::memcpy(&result.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return result;
}

absl::StatusOr<Address> Parse(const std::string& text) {
  if (absl::StartsWith(text, kUnix)) {
    return UnixAddress(text.substr(std::strlen(kUnix)));
  }
  return InternetAddress(text);
}

}  // namespace

absl::StatusOr<int> ConnectTo(const std::string& address) {
  absl::StatusOr<Address> parsed = Parse(address);
  if (!parsed.ok()) return parsed.status();
  const int fd = socket(parsed->family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Failed("socket", address);
  // For connect(), too, which waits while the listener's queue is full.
  const timeval limit = {kConnectSeconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (connect(fd, reinterpret_cast<sockaddr*>(&parsed->storage),
              parsed->size) != 0) {
    const absl::Status status = Failed("connect", address);
    close(fd);
    return status;
  }
  return fd;
}

absl::StatusOr<int> ListenAt(std::string* address) {
  absl::StatusOr<Address> parsed = Parse(*address);
  if (!parsed.ok()) return parsed.status();
  const int fd =
      socket(parsed->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Failed("socket", *address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&parsed->storage), parsed->size) !=
          0 ||
      listen(fd, kBacklog) != 0) {
    const absl::Status status = Failed("bind or listen", *address);
    close(fd);
    return status;
  }
  if (parsed->family != AF_UNIX) {
    sockaddr_storage bound = {};
    socklen_t size = sizeof(bound);
    getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
    const uint16_t port =
        bound.ss_family == AF_INET
            ? reinterpret_cast<sockaddr_in*>(&bound)->sin_port
            : reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port;
    *address =
        absl::StrCat(address->substr(0, address->rfind(':') + 1), ntohs(port));
  }
  return fd;
}

int AcceptFrom(int listener) {
  return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

bool IsOutOfDescriptors() { return errno == EMFILE || errno == ENFILE; }

int SpareDescriptor() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

void CloseSocket(int fd) { close(fd); }

}  // namespace tf_fuse
