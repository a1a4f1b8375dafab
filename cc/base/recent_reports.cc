// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "base/recent_reports.h"

#include <deque>
#include <mutex>
#include <utility>

namespace tf_fuse {

namespace {

struct ReportLog {
  std::mutex mu;
  std::deque<v1::FuseReport> reports;

  static ReportLog* Get() {
    static ReportLog* log = new ReportLog;
    return log;
  }
};

}  // namespace

void AddReport(v1::FuseReport report) {
  ReportLog* const log = ReportLog::Get();
  std::lock_guard<std::mutex> lock(log->mu);
  log->reports.push_back(std::move(report));
  if (log->reports.size() > kMaxReports) log->reports.pop_front();
}

std::vector<v1::FuseReport> RecentReports() {
  ReportLog* const log = ReportLog::Get();
  std::lock_guard<std::mutex> lock(log->mu);
  return {log->reports.begin(), log->reports.end()};
}

}  // namespace tf_fuse
