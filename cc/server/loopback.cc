// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "server/loopback.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

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

bool HasLoopback6() {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in6 at = {};
  at.sin6_family = AF_INET6;
  at.sin6_addr = in6addr_loopback;
  const bool has =
      bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0;
  close(fd);
  return has;
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
  static void Rebind(grpc::ServerBuilder* builder, bool has_loopback6) {
    auto& ports = builder->*kPorts;
    const auto added = ports;
    for (size_t i = 0; i < added.size(); ++i) {
      const absl::StatusOr<HostAndPort> where = Split(added[i].addr);
      if (!where.ok()) continue;
      ports[i].addr = absl::StrCat("127.0.0.1:", where->port);
      // (The system would choose another port for the other address.)
      if (!has_loopback6 || where->port == "0") continue;
      ports.push_back({absl::StrCat("[::1]:", where->port), added[i].creds,
                       /*selected_port=*/nullptr});
    }
  }
  friend void ListenOn(grpc::ServerBuilder* builder, bool has_loopback6) {
    Rebind(builder, has_loopback6);
  }
};

void ListenOn(grpc::ServerBuilder* builder, bool has_loopback6);
template struct PortsOf<&grpc::ServerBuilder::ports_>;

bool IsOnLoopback(const tensorflow::ServerDef& server_def) {
  int tasks = 0;
  for (const auto& job : server_def.cluster().job()) {
    for (const auto& [index, address] : job.tasks()) {
      if (!IsLoopback(address)) return false;
      ++tasks;
    }
  }
  return tasks > 1;
}

void ListenOnLoopback(grpc::ServerBuilder* builder) {
  ListenOn(builder, HasLoopback6());
}

}  // namespace tf_fuse
