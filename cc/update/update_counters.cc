// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "update/update_counters.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/metrics.h"

namespace tf_fuse {

namespace {

int Bucket(int64_t staleness) {
  int bucket = 0;
  while (staleness > 0 && bucket < UpdateLog::kBuckets - 1) {
    staleness >>= 1;
    ++bucket;
  }
  return bucket;
}

// Names are what a program likes.
std::string Quoted(const std::string& name) {
  std::string out = "\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppend(&out, "\\u", absl::Hex(c, absl::kZeroPad4));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

UpdateLog* UpdateLog::Get() {
  static UpdateLog* const log = new UpdateLog;
  return log;
}

template <typename T>
T& UpdateLog::In(std::map<std::string, T>* all, const std::string& name) {
  const auto found = all->find(name);
  if (found != all->end()) return found->second;
  return (*all)[all->size() < kMostNames ? name : ""];
}

int64_t UpdateLog::Count(const std::string& variable) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = variables_.find(variable);
  return found == variables_.end() ? 0 : found->second.updates;
}

void UpdateLog::Add(const Update& update) {
  std::lock_guard<std::mutex> lock(mu_);
  Variable& variable = In(&variables_, update.variable);
  const int64_t before = variable.updates++;
  variable.took_ns += update.took_ns;
  if (update.waited_us > 0) {
    Metrics::Get()->lock_waits.Add(update.waited_us);
    ++variable.waits;
    variable.wait_us += update.waited_us;
    variable.max_wait_us = std::max(variable.max_wait_us, update.waited_us);
  }
  if (update.begun < 0) return;
  Worker& worker = In(&workers_, update.worker);
  const int64_t staleness = std::max<int64_t>(before - update.begun, 0);
  ++worker.updates;
  worker.sum += staleness;
  worker.max = std::max(worker.max, staleness);
  ++worker.buckets[Bucket(staleness)];
}

std::string UpdateLog::ToJson() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::string out = "{\"variables\": {";
  const char* separator = "";
  for (const auto& [name, one] : variables_) {
    absl::StrAppend(&out, separator, Quoted(name),
                    ": {\"updates\": ", one.updates,
                    ", \"update_us\": ", one.took_ns / 1000,
                    ", \"waits\": ", one.waits, ", \"wait_us\": ", one.wait_us,
                    ", \"max_wait_us\": ", one.max_wait_us, "}");
    separator = ", ";
  }
  out += "}, \"workers\": {";
  separator = "";
  for (const auto& [name, one] : workers_) {
    absl::StrAppend(
        &out, separator, Quoted(name), ": {\"updates\": ", one.updates,
        ", \"staleness_sum\": ", one.sum, ", \"staleness_max\": ", one.max,
        ", \"staleness\": [", absl::StrJoin(one.buckets, ", "), "]}");
    separator = ", ";
  }
  return out + "}}";
}

}  // namespace tf_fuse
