// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "base/hosts.h"

namespace tf_fuse {

std::string HostOfAddress(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host == "::1" || host.rfind("127.", 0) == 0) return "localhost";
  return host;
}

}  // namespace tf_fuse
