// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "server/loopback.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "channel/socket/addresses.h"
#include "grpcpp/server_builder.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"

namespace tf_fuse {

namespace {

// As in tf_fuse/cluster/task_process.py.
constexpr char kOneHostVariable[] = "TF_FUSE_ONE_HOST";

template <typename SocketAddress>
bool CanBind(const SocketAddress& at, int family) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool can =
      bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0;
  close(fd);
  return can;
}

// The addresses of the host's loopback interface, as gRPC writes them.
std::vector<std::string> LoopbackHosts() {
  std::vector<std::string> hosts;
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (CanBind(v4, AF_INET)) hosts.push_back("127.0.0.1");
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  if (CanBind(v6, AF_INET6)) hosts.push_back("[::1]");
  return hosts;
}

bool IsLoopback(const std::string& address) {
  const absl::StatusOr<HostAndPort> where = Split(address);
  return where.ok() && (absl::EqualsIgnoreCase(where->host, "localhost") ||
                        where->host == "127.0.0.1" || where->host == "::1");
}

}  // namespace

// gRPC cannot change a port that was added, and TensorFlow adds it. (The names
// in an explicit instantiation may be private.)
template <auto kPorts>
struct PortsOf {
  static void Rebind(grpc::ServerBuilder* builder,
                     const std::vector<std::string>& hosts) {
    auto& ports = builder->*kPorts;
    const auto added = ports;
    ports.clear();
    for (const auto& one : added) {
      const absl::StatusOr<HostAndPort> where = Split(one.addr);
      ports.push_back(one);
      if (!where.ok() || hosts.empty()) continue;
      ports.back().addr = absl::StrCat(hosts[0], ":", where->port);
      // (The system would choose another port for another address.)
      if (where->port == "0") continue;
      for (size_t i = 1; i < hosts.size(); ++i) {
        ports.push_back({absl::StrCat(hosts[i], ":", where->port), one.creds,
                         /*selected_port=*/nullptr});
      }
    }
  }
  friend void ListenOn(grpc::ServerBuilder* builder,
                       const std::vector<std::string>& hosts) {
    Rebind(builder, hosts);
  }
};

void ListenOn(grpc::ServerBuilder* builder,
              const std::vector<std::string>& hosts);
template struct PortsOf<&grpc::ServerBuilder::ports_>;

bool IsOnLoopback(const tensorflow::ServerDef& server_def) {
  int tasks = 0;
  for (const auto& job : server_def.cluster().job()) {
    for (const auto& [index, address] : job.tasks()) {
      if (!IsLoopback(address)) return false;
      ++tasks;
    }
  }
  return tasks > 1 || std::getenv(kOneHostVariable) != nullptr;
}

void ListenOnLoopback(grpc::ServerBuilder* builder) {
  ListenOn(builder, LoopbackHosts());
}

}  // namespace tf_fuse
