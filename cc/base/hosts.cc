// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "base/hosts.h"

#include <algorithm>

namespace tf_fuse {

std::string HostOfAddress(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host == "::1" || host.rfind("127.", 0) == 0) return "localhost";
  return host;
}

double Hosts::Overlap(const std::string& send_task,
                      const std::string& recv_task) const {
  const auto sender = of_task.find(send_task);
  const auto receiver = of_task.find(recv_task);
  if (sender == of_task.end() || receiver == of_task.end() ||
      sender->second != receiver->second) {
    return 1;
  }
  const auto tasks = std::count_if(
      of_task.begin(), of_task.end(),
      [&](const auto& task) { return task.second == sender->second; });
  const double free = static_cast<double>(cores) / static_cast<double>(tasks);
  return std::clamp(free - 1, 0.0, 1.0);
}

}  // namespace tf_fuse
