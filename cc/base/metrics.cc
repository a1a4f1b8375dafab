// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "base/metrics.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace tf_fuse {

namespace {

// As in tf_fuse/cluster/launcher/step_counts.py.
constexpr char kStepsVariable[] = "TF_FUSE_STEPS_FILE";
constexpr char kStepsFile[] = "/memfd:tf_fuse_steps (deleted)";

struct StepCounts {
  std::atomic<int64_t> all{0};
  std::atomic<int64_t> collective{0};
};
static_assert(sizeof(StepCounts) == 2 * sizeof(int64_t) &&
              std::atomic<int64_t>::is_always_lock_free);

// The launcher's memory for the counts; null if there is none. A variable that
// has outlived its launcher may name a file of another process, which nobody
// may change.
StepCounts* MapStepCounts() {
  const char* path = std::getenv(kStepsVariable);
  if (path == nullptr) return nullptr;
  char name[sizeof(kStepsFile) + 1];
  const ssize_t length = readlink(path, name, sizeof(name));
  if (std::string(name, length < 0 ? 0 : length) != kStepsFile) return nullptr;
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat found;
  void* memory = MAP_FAILED;
  if (fstat(file, &found) == 0 && found.st_size >= off_t{sizeof(StepCounts)}) {
    memory = mmap(nullptr, sizeof(StepCounts), PROT_READ | PROT_WRITE,
                  MAP_SHARED, file, 0);
  }
  close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<StepCounts*>(memory);
}

StepCounts& Counts() {
  static StepCounts* counts = [] {
    StepCounts* mapped = MapStepCounts();
    return mapped != nullptr ? mapped : new StepCounts;
  }();
  return *counts;
}

// While the library is loaded: then tf_fuse/_native.py removes the variable.
[[maybe_unused]] const StepCounts& at_load = Counts();

void AddWaits(const char* name, const WaitHistogram& waits, std::string* out) {
  *out += std::string(", \"") + name + "\": {\"counts\": [";
  for (size_t i = 0; i < WaitHistogram::kBuckets; ++i) {
    *out += (i == 0 ? "" : ", ") + std::to_string(waits.count(i));
  }
  *out += "], \"sum_us\": " + std::to_string(waits.sum_us()) + "}";
}

}  // namespace

Metrics::Metrics()
    : steps(Counts().all), collective_steps(Counts().collective) {}

void Metrics::AddSkipped(const std::string& reason, int64_t count) {
  std::lock_guard<std::mutex> lock(mu_);
  skipped_[reason] += count;
}

std::string Metrics::ToJson() const {
  std::string out = "{";
  auto add = [&out](const char* name, const std::atomic<int64_t>& value) {
    out +=
        std::string("\"") + name + "\": " + std::to_string(value.load()) + ", ";
  };
  add("fused_rpcs", fused_rpcs);
  add("single_rpcs", single_rpcs);
  add("tensors", tensors);
  add("bytes", bytes);
  add("channel_frames", channel_frames);
  add("channel_bytes", channel_bytes);
  add("beside_tensors", beside_tensors);
  add("copied_tensors", copied_tensors);
  add("fallbacks", fallbacks);
  add("errors", errors);
  add("dynamic_requests", dynamic_requests);
  add("dynamic_rounds", dynamic_rounds);
  add("stalled_receives", stalled_receives);
  add("pending_receives", pending_receives);
  add("open_steps", open_steps);
  add("steps", steps);
  add("collective_steps", collective_steps);
  add("served_rpcs", served_rpcs);
  add("served_tensors", served_tensors);
  add("served_bytes", served_bytes);
  add("served_errors", served_errors);
  add("served_probes", served_probes);
  add("cancelled_requests", cancelled_requests);
  add("postponed_requests", postponed_requests);
  add("rejected_requests", rejected_requests);
  add("stalled_requests", stalled_requests);
  add("asked_receivers", asked_receivers);
  add("pending_requests", pending_requests);
  add("remembered_requests", remembered_requests);
  add("pending_bytes", pending_bytes);
  add("unsent_frame_bytes", unsent_frame_bytes);
  add("partial_tensors", partial_tensors);
  add("collective_bytes_shm", collective_bytes_shm);
  add("collective_bytes_tcp", collective_bytes_tcp);
  add("collective_bytes_grpc", collective_bytes_grpc);
  add("collective_bytes_stock", collective_bytes_stock);
  add("collective_copied_bytes", collective_copied_bytes);
  add("direct_collectives", direct_collectives);
  add("shared_memory_bytes", shared_memory_bytes);
  add("lent_chunks", lent_chunks);
  add("data_channels", data_channels);
  add("functions", functions);
  add("groups", groups);
  add("fused_receives", fused_receives);
  out += "\"skipped\": {";
  std::lock_guard<std::mutex> lock(mu_);
  const char* separator = "";
  for (const auto& [reason, count] : skipped_) {
    out += separator + ("\"" + reason + "\": ") + std::to_string(count);
    separator = ", ";
  }
  out += "}, \"waits\": {\"bounds_us\": [";
  for (size_t i = 0; i < WaitHistogram::kBoundsUs.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(WaitHistogram::kBoundsUs[i]);
  }
  out += "]";
  AddWaits("receives", receive_waits, &out);
  AddWaits("requests", request_waits, &out);
  AddWaits("chunks", chunk_waits, &out);
  AddWaits("locks", lock_waits, &out);
  out += "}}";
  return out;
}

Metrics* Metrics::Get() {
  // Never destroyed: server threads may count while the process exits.
  static Metrics* metrics = new Metrics;
  return metrics;
}

}  // namespace tf_fuse
