// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/calls/call_handler.h"

#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tf_fuse {

namespace {

struct Handlers {
  absl::Mutex mu;
  std::map<uint64_t, CallHandler*> by_token ABSL_GUARDED_BY(mu);
};

Handlers* AllHandlers() {
  static Handlers* handlers = new Handlers;
  return handlers;
}

}  // namespace

void CallHandler::Register(uint64_t token, CallHandler* handler) {
  absl::MutexLock lock(&AllHandlers()->mu);
  AllHandlers()->by_token[token] = handler;
}

void CallHandler::Unregister(uint64_t token) {
  absl::MutexLock lock(&AllHandlers()->mu);
  AllHandlers()->by_token.erase(token);
}

CallHandler* CallHandler::Find(uint64_t token) {
  absl::MutexLock lock(&AllHandlers()->mu);
  auto found = AllHandlers()->by_token.find(token);
  return found == AllHandlers()->by_token.end() ? nullptr : found->second;
}

}  // namespace tf_fuse
