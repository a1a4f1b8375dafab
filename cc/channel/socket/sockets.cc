// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/socket/sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "channel/socket/addresses.h"
#include "channel/socket/descriptors.h"

namespace tf_fuse {

namespace {

constexpr absl::Duration kLookUpLimit = absl::Seconds(5);  // Of an own name.
constexpr int kBacklog = 128;
constexpr int kPortAttempts = 10;
constexpr char kUnix[] = "unix:";

absl::Status SocketError(const char* call, const std::string& address) {
  return absl::UnavailableError(absl::StrCat("data channel at ", address, ": ",
                                             call, ": ", std::strerror(errno)));
}

// (It waits while the listener's queue is full, and cannot be polled then.)
absl::StatusOr<int> ConnectToUnix(const Address& to, const std::string& text,
                                  absl::Time deadline) {
  const int fd = OpenDescriptor(
      [] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  if (fd < 0) return SocketError("socket", text);
  const timeval limit =
      absl::ToTimeval(std::max(deadline - absl::Now(), absl::Milliseconds(1)));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (connect(fd, to.get(), to.size) == 0) return fd;
  const absl::Status status = SocketError("connect", text);
  CloseDescriptor(fd);
  return status;
}

// Sockets that connect at once, each to another address.
class Race {
 public:
  explicit Race(std::string text) : text_(std::move(text)) {}
  ~Race() {
    for (const Runner& one : runners_) CloseDescriptor(one.fd);
  }

  void Add(const Address& to) {
    const int fd = OpenDescriptor([&to] {
      return socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    });
    if (fd >= 0 && (connect(fd, to.get(), to.size) == 0 ||
                    errno == EINPROGRESS || errno == EINTR)) {
      runners_.push_back({fd, to.text()});
      return;
    }
    const int error = errno;
    Drop(to.text(), error);
    if (fd >= 0) CloseDescriptor(fd);
  }

  // The first that is connected; the caller closes it.
  absl::StatusOr<int> Winner(absl::Time deadline) {
    while (!runners_.empty()) {
      std::vector<pollfd> polled;
      for (const Runner& one : runners_) polled.push_back({one.fd, POLLOUT, 0});
      const absl::Duration left = deadline - absl::Now();
      const int ready =
          left <= absl::ZeroDuration()
              ? 0
              : poll(polled.data(), polled.size(),
                     static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) {
        for (const Runner& one : runners_) Drop(one.address, ETIMEDOUT);
        break;
      }
      for (size_t i = polled.size(); i > 0; --i) {
        if (polled[i - 1].revents == 0) continue;
        const auto one = runners_.begin() + static_cast<std::ptrdiff_t>(i - 1);
        const int fd = one->fd;
        int error = 0;
        socklen_t size = sizeof(error);
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        const std::string address = one->address;
        runners_.erase(one);
        if (error == 0) return fd;
        Drop(address, error);
        CloseDescriptor(fd);
      }
    }
    return absl::UnavailableError(absl::StrCat(
        "data channel at ", text_,
        ": connect: ", errors_.empty() ? "the name has no address" : errors_));
  }

 private:
  struct Runner {
    int fd;
    std::string address;
  };

  void Drop(const std::string& address, int error) {
    absl::StrAppend(&errors_, errors_.empty() ? "" : "; ", address, ": ",
                    std::strerror(error));
  }

  const std::string text_;
  std::vector<Runner> runners_;
  std::string errors_;
};

// -1, and errno.
int ListenOn(const Address& at) {
  const int fd = OpenDescriptor([&at] {
    return socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  });
  if (fd < 0) return -1;
  // All of IPv6 is all of IPv4, too, whatever the system's default.
  const int no = 0;
  if (at.family() == AF_INET6) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  }
  if (bind(fd, at.get(), at.size) == 0 && listen(fd, kBacklog) == 0) return fd;
  CloseDescriptor(fd);
  return -1;
}

in_port_t PortOf(int fd) {
  Address bound;
  bound.size = sizeof(bound.storage);
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
  return *bound.port();
}

// All addresses of this host: the first one's, or the second one's where there
// is no IPv6.
Addresses Wildcards(in_port_t port) {
  Addresses all(2);
  all[0].storage.ss_family = AF_INET6;
  all[0].size = sizeof(sockaddr_in6);
  all[1].storage.ss_family = AF_INET;
  all[1].size = sizeof(sockaddr_in);
  *all[0].port() = port;
  return all;
}

// Listens at those that this host has, all at one port; or at the first of them
// alone.
absl::StatusOr<std::vector<int>> ListenAtAll(Addresses addresses,
                                             const std::string& text,
                                             bool first_alone) {
  for (int attempt = 0; attempt < kPortAttempts; ++attempt) {
    std::vector<int> fds;
    in_port_t port = *addresses[0].port();
    bool taken = false;
    int error = 0;
    for (Address& address : addresses) {
      *address.port() = port;
      const int fd = ListenOn(address);
      if (fd < 0) {
        error = errno;
        // A port of any number may be another process' at the next address.
        taken = taken || (errno == EADDRINUSE && !fds.empty());
        continue;
      }
      fds.push_back(fd);
      port = PortOf(fd);
      if (first_alone) break;
    }
    if (fds.empty()) {
      errno = error;
      return SocketError("bind or listen", text);
    }
    if (!taken) return fds;
    for (int fd : fds) CloseDescriptor(fd);
  }
  return absl::UnavailableError(absl::StrCat("data channel at ", text,
                                             ": no port is free at all of its ",
                                             addresses.size(), " addresses"));
}

bool IsLocalhost(const std::string& host) {
  return host == "localhost" || absl::StartsWith(host, "localhost.") ||
         absl::EndsWith(host, ".localhost");
}

}  // namespace

absl::StatusOr<int> ConnectTo(const std::string& address, absl::Time deadline) {
  if (absl::StartsWith(address, kUnix)) {
    const absl::StatusOr<Address> to =
        UnixAddress(address.substr(std::strlen(kUnix)));
    if (!to.ok()) return to.status();
    return ConnectToUnix(*to, address, deadline);
  }
  const absl::StatusOr<HostAndPort> where = Split(address);
  if (!where.ok()) return where.status();
  const absl::StatusOr<Addresses> found = Resolve(*where, deadline);
  if (!found.ok()) return found.status();
  Race race(address);
  for (const Address& to : *found) race.Add(to);
  return race.Winner(deadline);
}

absl::StatusOr<std::vector<int>> ListenAt(std::string* address) {
  if (absl::StartsWith(*address, kUnix)) {
    const absl::StatusOr<Address> at =
        UnixAddress(address->substr(std::strlen(kUnix)));
    if (!at.ok()) return at.status();
    const int fd = ListenOn(*at);
    if (fd < 0) return SocketError("bind or listen", *address);
    return std::vector<int>{fd};
  }
  const absl::StatusOr<HostAndPort> where = Split(*address);
  if (!where.ok()) return where.status();
  absl::StatusOr<Addresses> found = LookUpNumber(*where);
  bool everywhere = false;
  if (!found.ok()) {
    found = LookUpName(*where, absl::Now() + kLookUpLimit);
    if (!found.ok()) return found.status();
    everywhere = !IsLocalhost(where->host) &&
                 std::any_of(found->begin(), found->end(),
                             [](Address& one) { return one.is_loopback(); });
  }
  if (found->empty()) {
    return absl::UnavailableError(
        absl::StrCat("data channel: host '", where->host, "' has no address"));
  }
  if (everywhere) found = Wildcards(*found->front().port());
  absl::StatusOr<std::vector<int>> fds =
      ListenAtAll(*std::move(found), *address, /*first_alone=*/everywhere);
  if (!fds.ok()) return fds.status();
  *address = absl::StrCat(address->substr(0, address->rfind(':') + 1),
                          ntohs(PortOf(fds->front())));
  return fds;
}

int AcceptFrom(int listener) {
  return OpenDescriptor([listener] {
    return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  });
}

bool IsOutOfDescriptors() { return errno == EMFILE || errno == ENFILE; }

int SpareDescriptor() {
  return OpenDescriptor([] { return open("/dev/null", O_RDONLY | O_CLOEXEC); });
}

}  // namespace tf_fuse
