// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/watch/stall_report.h"

#include <chrono>
#include <mutex>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "transport/watch/watch.h"

namespace tf_fuse {

namespace {

constexpr int kMaxNames = 10;
constexpr int kReportsPerMinute = 10;

std::string Names(const v1::WaitingReceive& waiting) {
  std::string names;
  const int count = std::min(waiting.tensor_names_size(), kMaxNames);
  for (int i = 0; i < count; ++i) {
    // On the sender they come from the peer.
    absl::StrAppend(&names, i == 0 ? "" : ", ",
                    absl::CHexEscape(waiting.tensor_names(i)));
  }
  const int all = static_cast<int>(waiting.missing_known() ? waiting.missing()
                                                           : waiting.tensors());
  if (all > count) absl::StrAppend(&names, " and ", all - count, " more");
  return names;
}

std::string Seconds(uint64_t micros) {
  const uint64_t tenths = micros / 100000;
  return absl::StrCat(tenths / 10, ".", tenths % 10, " s");
}

// "3 of 300 tensors"; "its 300 tensors" where nobody knows which are missing.
std::string Count(const v1::WaitingReceive& waiting) {
  if (!waiting.missing_known()) {
    return absl::StrCat("its ", waiting.tensors(), " tensors");
  }
  return absl::StrCat(waiting.missing(), " of ", waiting.tensors(), " tensors");
}

std::string UsualReason(const v1::WaitingReceive& waiting) {
  const char* where = waiting.sending() ? "here" : "there";
  if (waiting.step_not_begun()) {
    return absl::StrCat("The step has not begun ", where, ".");
  }
  if (waiting.one_by_one()) return "They travel one by one.";
  return absl::StrCat("They have not been computed ", where, ".");
}

}  // namespace

std::string TaskOfDevice(absl::string_view device) {
  std::string task;
  std::string rest;
  if (!tensorflow::DeviceNameUtils::SplitDeviceName(device, &task, &rest)) {
    return std::string(device);
  }
  return task;
}

tensorflow::Device* HostDevice(const tensorflow::WorkerEnv* env) {
  return env->device_mgr->HostCPU();
}

bool AdmitStallReport() {
  static std::mutex mu;
  static std::chrono::steady_clock::time_point begin;
  static int reports = 0;
  const auto now = std::chrono::steady_clock::now();
  std::lock_guard<std::mutex> lock(mu);
  if (reports == 0 || now - begin >= std::chrono::minutes(1)) {
    begin = now;
    reports = 0;
  }
  if (reports == kReportsPerMinute) {
    ++reports;
    LOG(WARNING) << "tf_fuse: more fused receives wait than the "
                 << kReportsPerMinute
                 << " that are reported in a minute; tf_fuse.cluster_waiting() "
                    "lists them all.";
  }
  if (reports > kReportsPerMinute) return false;
  ++reports;
  return true;
}

void LogStall(const v1::WaitingReceive& waiting, absl::string_view why) {
  const std::string reason =
      why.empty() ? UsualReason(waiting) : std::string(why);
  const std::string who = waiting.sending()
                              ? absl::StrCat(waiting.peer(), " has waited ")
                              : "a fused receive has waited ";
  LOG(WARNING) << "tf_fuse: " << waiting.task() << ", step "
               << waiting.step_id() << ": " << who
               << Seconds(waiting.waited_micros()) << " for " << Count(waiting)
               << " of " << (waiting.sending() ? "this task" : waiting.peer())
               << ": " << Names(waiting) << ". " << reason
               << " (Logged once per receive, after TF_FUSE_STALL_WARN_MS="
               << StallMicros() / 1000 << ".)";
}

}  // namespace tf_fuse
