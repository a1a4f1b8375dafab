// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/fuse_recv/dynamic_groups.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

namespace tf_fuse {

namespace {

// Send device, receive device, incarnation and frame.
using Key = std::tuple<std::string, std::string, int64_t, std::string>;

}  // namespace

void GroupDynamicReceives(
    const PartitionView& view, const std::vector<DynamicReceive>& receives,
    const std::function<std::string(const std::string&)>& task_blocker,
    FusePlan* plan) {
  std::map<Key, std::vector<DynamicReceive>> candidates;
  for (const DynamicReceive& dynamic : receives) {
    const Receive& receive = *dynamic.receive;
    // Values are not copied from or to other memories by parts.
    if (DeviceTypeOf(receive.send_device) != "CPU" ||
        DeviceTypeOf(receive.recv_device) != "CPU") {
      plan->skipped.push_back({&receive, skip::kNotCpu});
      continue;
    }
    candidates[{receive.send_device, receive.recv_device,
                receive.send_device_incarnation, view.frame(receive.node)}]
        .push_back(dynamic);
  }
  for (auto& [key, members] : candidates) {
    std::string reason = members.size() < 2 ? members[0].if_alone : "";
    if (reason.empty()) reason = task_blocker(TaskOfDevice(std::get<1>(key)));
    if (!reason.empty()) {
      for (const DynamicReceive& member : members) {
        plan->skipped.push_back({member.receive, reason});
      }
      continue;
    }
    std::sort(members.begin(), members.end(),
              [](const DynamicReceive& a, const DynamicReceive& b) {
                return a.receive->tensor_name < b.receive->tensor_name;
              });
    FuseGroup group;
    group.dynamic = true;
    group.send_device = std::get<0>(key);
    group.recv_device = std::get<1>(key);
    group.frame = std::get<3>(key);
    for (const DynamicReceive& member : members) {
      group.receives.push_back(member.receive);
      group.may_be_dead.push_back(member.may_be_dead);
    }
    plan->groups.push_back(std::move(group));
  }
}

}  // namespace tf_fuse
