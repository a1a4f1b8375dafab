// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Counters of this process. They only grow, but for the gauges; readers take
// differences.

#ifndef TF_FUSE_CC_BASE_METRICS_H_
#define TF_FUSE_CC_BASE_METRICS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace tf_fuse {

// Measures from its construction on.
class Stopwatch {
 public:
  int64_t Micros() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
};

// How long something waited: how often each length came, and the sum.
// Thread-safe.
class WaitHistogram {
 public:
  // A bucket has the waits up to its bound that are above the bound before it;
  // one more bucket has those above all bounds.
  static constexpr std::array<int64_t, 13> kBoundsUs = {
      100,        300,        1'000,      3'000,     10'000,
      30'000,     100'000,    300'000,    1'000'000, 3'000'000,
      10'000'000, 30'000'000, 100'000'000};
  static constexpr size_t kBuckets = kBoundsUs.size() + 1;

  void Add(int64_t waited_us) {
    const auto* bound =
        std::lower_bound(kBoundsUs.begin(), kBoundsUs.end(), waited_us);
    counts_[bound - kBoundsUs.begin()].fetch_add(1, std::memory_order_relaxed);
    sum_us_.fetch_add(waited_us, std::memory_order_relaxed);
  }

  int64_t count(size_t bucket) const { return counts_[bucket].load(); }
  int64_t sum_us() const { return sum_us_.load(); }

 private:
  std::array<std::atomic<int64_t>, kBuckets> counts_{};
  std::atomic<int64_t> sum_us_{0};
};

struct Metrics {
  // Receiving side.
  std::atomic<int64_t> fused_rpcs{0};   // RPCs that carried a frame.
  std::atomic<int64_t> single_rpcs{0};  // RPCs that carried one tensor.
  std::atomic<int64_t> tensors{0};      // Tensors received in frames.
  std::atomic<int64_t> bytes{0};        // Bytes of those frames.
  // Of those, what came by a data channel.
  std::atomic<int64_t> channel_frames{0};
  std::atomic<int64_t> channel_bytes{0};
  std::atomic<int64_t> beside_tensors{
      0};  // Too large for a frame: sent singly.
  std::atomic<int64_t> copied_tensors{0};    // Copied out of a frame.
  std::atomic<int64_t> fallbacks{0};         // Fused receives done one by one.
  std::atomic<int64_t> errors{0};            // Fused receives that failed.
  std::atomic<int64_t> stalled_receives{0};  // That waited for very long.
  std::atomic<int64_t> pending_receives{0};  // A gauge: waiting for tensors.
  // Of dynamic receives, which count as fused ones too: requests that were
  // sent, and answers that left something to be asked for again.
  std::atomic<int64_t> dynamic_requests{0};
  std::atomic<int64_t> dynamic_rounds{0};
  // A gauge: steps that have begun, and are neither over nor aborted.
  std::atomic<int64_t> open_steps{0};
  // Steps that have begun, and those that had collectives. In memory that a
  // launcher reads, too, if the environment names some.
  std::atomic<int64_t>& steps;
  std::atomic<int64_t>& collective_steps;
  // Sending side.
  std::atomic<int64_t> served_rpcs{0};
  std::atomic<int64_t> served_tensors{0};
  std::atomic<int64_t> served_bytes{0};
  std::atomic<int64_t> served_errors{0};
  std::atomic<int64_t> served_probes{0};
  std::atomic<int64_t> cancelled_requests{0};
  std::atomic<int64_t> postponed_requests{0};   // To be asked again.
  std::atomic<int64_t> rejected_requests{0};    // Malformed, or over a limit.
  std::atomic<int64_t> stalled_requests{0};     // That waited for very long.
  std::atomic<int64_t> asked_receivers{0};      // Whether they still wait.
  std::atomic<int64_t> pending_requests{0};     // A gauge: waiting for tensors.
  std::atomic<int64_t> pending_bytes{0};        // A gauge: what they take.
  std::atomic<int64_t> unsent_frame_bytes{0};   // A gauge: not taken yet.
  std::atomic<int64_t> remembered_requests{0};  // A gauge: kept parsed.
  // A gauge: tensors of requests by parts that were not sent yet.
  std::atomic<int64_t> partial_tensors{0};
  // Collectives: bytes that chunks brought here, by their way; what was copied
  // in the process to send or take them; what it lends to others of its host.
  std::atomic<int64_t> collective_bytes_shm{0};
  std::atomic<int64_t> collective_bytes_tcp{0};
  std::atomic<int64_t> collective_bytes_grpc{0};
  std::atomic<int64_t> collective_bytes_stock{0};
  std::atomic<int64_t> collective_copied_bytes{0};
  std::atomic<int64_t> direct_collectives{0};   // That took our algorithm.
  std::atomic<int64_t> shared_memory_bytes{0};  // A gauge.
  std::atomic<int64_t> lent_chunks{0};          // A gauge: not given back yet.
  std::atomic<int64_t> data_channels{0};        // A gauge: open connections.
  // The pass.
  std::atomic<int64_t> functions{0};       // Graphs that the pass looked at.
  std::atomic<int64_t> groups{0};          // _FuseRecv nodes made.
  std::atomic<int64_t> fused_receives{0};  // _Recv nodes they replaced.

  // How long what ended well has waited: fused receives for their tensors;
  // requests of peers for tensors of this task, until their frame was made;
  // collectives for chunks of other members; updates for variables' locks.
  WaitHistogram receive_waits;
  WaitHistogram request_waits;
  WaitHistogram chunk_waits;
  WaitHistogram lock_waits;

  void AddSkipped(const std::string& reason, int64_t count);

  // One JSON object; keys are the names above, plus "skipped": {reason: n} and
  // "waits": {"bounds_us": [...], and for "receives", "requests", "chunks" and
  // "locks" {"counts": [waits by bucket], "sum_us": n}}.
  std::string ToJson() const;

  static Metrics* Get();

 private:
  Metrics();

  mutable std::mutex mu_;
  std::map<std::string, int64_t> skipped_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_BASE_METRICS_H_
