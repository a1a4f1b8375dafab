// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A task asks for the same tensors in every step. Parsing a few hundred keys
// costs more than the lookup of a request that was seen before.

#ifndef TF_FUSE_CC_TRANSPORT_REQUEST_CACHE_H_
#define TF_FUSE_CC_TRANSPORT_REQUEST_CACHE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "transport/fused_keys.h"
#include "transport/metrics.h"

namespace tf_fuse {

class RequestCache {
 public:
  // The parsed form of `serialized`, a FuseRecvTensorRequest. Thread-safe.
  // Errors: those of ParseRequest(); nothing is remembered then.
  absl::StatusOr<std::shared_ptr<const ParsedKeys>> Get(
      const std::string& serialized) {
    {
      absl::ReaderMutexLock lock(&mu_);
      auto it = requests_.find(serialized);
      if (it != requests_.end()) return it->second;
    }
    auto parsed = ParseRequest(serialized);
    if (!parsed.ok()) return parsed;
    // Never repeated, and many: they would push out what is.
    if ((*parsed)->stalled_request_id != 0 || (*parsed)->in_loop) return parsed;
    absl::MutexLock lock(&mu_);
    // What a peer sends must not grow this without bound. Starting anew is
    // simpler than an order of use.
    std::atomic<int64_t>& gauge = Metrics::Get()->remembered_requests;
    if (bytes_ + serialized.size() > kMaxBytes) {
      gauge.fetch_sub(static_cast<int64_t>(requests_.size()));
      requests_.clear();
      bytes_ = 0;
    }
    if (serialized.size() <= kMaxBytes &&
        requests_.emplace(serialized, *parsed).second) {
      bytes_ += serialized.size();
      gauge.fetch_add(1);
    }
    return parsed;
  }

 private:
  static constexpr size_t kMaxBytes = 8 << 20;

  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<const ParsedKeys>> requests_
      ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_REQUEST_CACHE_H_
