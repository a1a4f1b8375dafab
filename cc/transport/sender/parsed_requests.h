// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A task asks for the same tensors in every step. Parsing a few hundred keys
// costs more than the lookup of a request that was seen before.

#ifndef TF_FUSE_CC_TRANSPORT_SENDER_PARSED_REQUESTS_H_
#define TF_FUSE_CC_TRANSPORT_SENDER_PARSED_REQUESTS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "base/limits.h"
#include "base/metrics.h"
#include "transport/message/receive_keys.h"

namespace tf_fuse {

class RequestCache {
 public:
  // The parsed form of `serialized`, a FuseRecvTensorRequest, or null if it is
  // not remembered. Thread-safe, as Insert().
  std::shared_ptr<const ParsedKeys> Find(const std::string& serialized) {
    absl::ReaderMutexLock lock(&mu_);
    const auto it = requests_.find(serialized);
    return it == requests_.end() ? nullptr : it->second;
  }

  void Insert(const std::string& serialized,
              std::shared_ptr<const ParsedKeys> keys) {
    const uint64_t bytes = BytesOf(keys->size);
    absl::MutexLock lock(&mu_);
    std::atomic<int64_t>& gauge = Metrics::Get()->remembered_requests;
    // What a peer sends must not grow this without bound. Starting anew is
    // simpler than an order of use.
    if (bytes_ + bytes > kRequestCacheBytes) {
      gauge.fetch_sub(static_cast<int64_t>(requests_.size()));
      requests_.clear();
      bytes_ = 0;
    }
    if (bytes <= kRequestCacheBytes &&
        requests_.emplace(serialized, std::move(keys)).second) {
      bytes_ += bytes;
      gauge.fetch_add(1);
    }
  }

 private:
  // The message, the entry, and the parsed keys with their text.
  static uint64_t BytesOf(const RequestSize& size) {
    return size.message_bytes + 256 + size.key_bytes +
           size.keys * sizeof(tensorflow::Rendezvous::ParsedKey);
  }

  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<const ParsedKeys>> requests_
      ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_SENDER_PARSED_REQUESTS_H_
