// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/socket/addresses.h"

#include <netdb.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace tf_fuse {

namespace {

constexpr size_t kMaxAddresses = 16;  // Of a name.

absl::StatusOr<Addresses> LookUp(const HostAndPort& where, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(where.host.c_str(), where.port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(
        "data channel: host '", where.host, "': ", gai_strerror(error)));
  }
  Addresses addresses;
  for (const addrinfo* one = found;
       one != nullptr && addresses.size() < kMaxAddresses; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    Address address;
    address.size = one->ai_addrlen;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  return addresses;
}

struct Answer {
  absl::StatusOr<Addresses> addresses;
  absl::Notification came;
};

// Looks a name up in another thread: a name service that does not answer cannot
// be interrupted. Who asks for a name that is being looked up gets that answer:
// so there is one thread for each, and not one for each attempt.
absl::StatusOr<std::shared_ptr<Answer>> BeginLookUp(const HostAndPort& where) {
  static absl::Mutex mu(absl::kConstInit);
  static auto* const under_way =
      new std::map<std::string, std::shared_ptr<Answer>>;
  const std::string name = absl::StrCat(where.host, " ", where.port);
  absl::MutexLock lock(&mu);
  auto [found, is_new] = under_way->try_emplace(name);
  if (!is_new) return found->second;
  const auto answer = found->second = std::make_shared<Answer>();
  try {
    std::thread([where, name, answer] {
      answer->addresses = LookUp(where, 0);
      {
        absl::MutexLock lock(&mu);
        under_way->erase(name);
      }
      answer->came.Notify();
    }).detach();
  } catch (const std::system_error& error) {
    under_way->erase(name);
    return absl::ResourceExhaustedError(
        absl::StrCat("data channel: host '", where.host,
                     "': no thread to look it up in: ", error.what()));
  }
  return answer;
}

}  // namespace

std::string Address::text() const {
  char host[NI_MAXHOST] = "?";
  if (family() == AF_UNIX) return "the socket";
  (void)getnameinfo(get(), size, host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST);
  return host;
}

absl::StatusOr<Address> UnixAddress(const std::string& name) {
  Address result;
  auto* address = reinterpret_cast<sockaddr_un*>(&result.storage);
  if (name.empty() || name.size() + 1 >= sizeof(address->sun_path)) {
    return absl::UnavailableError(absl::StrCat(
        "data channel: '", name, "' is not a valid name of a socket"));
  }
  address->sun_family = AF_UNIX;
  // A zero byte first: the abstract namespace.
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  result.size = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  return result;
}

absl::StatusOr<HostAndPort> Split(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    return absl::UnavailableError(absl::StrCat(
        "data channel: '", text, "' is not of the form host:port"));
  }
  std::string host = text.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  return HostAndPort{host, text.substr(colon + 1)};
}

absl::StatusOr<Addresses> LookUpNumber(const HostAndPort& where) {
  return LookUp(where, AI_NUMERICHOST);
}

absl::StatusOr<Addresses> LookUpName(const HostAndPort& where,
                                     absl::Time deadline) {
  const auto begun = BeginLookUp(where);
  if (!begun.ok()) return begun.status();
  const std::shared_ptr<Answer> answer = *begun;
  if (!answer->came.WaitForNotificationWithDeadline(deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat("data channel: host '", where.host,
                     "': the name service did not answer in time"));
  }
  return answer->addresses;
}

absl::StatusOr<Addresses> Resolve(const HostAndPort& where,
                                  absl::Time deadline) {
  absl::StatusOr<Addresses> literal = LookUpNumber(where);
  if (literal.ok()) return literal;
  return LookUpName(where, deadline);
}

}  // namespace tf_fuse
