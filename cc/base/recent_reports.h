// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The reports of the functions that this process has rewritten lately.

#ifndef TF_FUSE_CC_BASE_RECENT_REPORTS_H_
#define TF_FUSE_CC_BASE_RECENT_REPORTS_H_

#include <cstddef>
#include <vector>

#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

inline constexpr size_t kMaxReports = 64;

// Keeps a report, and drops the oldest one if there are more than kMaxReports.
void AddReport(v1::FuseReport report);

// Oldest first.
std::vector<v1::FuseReport> RecentReports();

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_BASE_RECENT_REPORTS_H_
