// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Tests what waits at a task whose collectives begin anew. Needs no channel.
// Part of channels_test; each test says why it fails.

#ifndef TF_FUSE_CC_TESTING_CHANNELS_CHANNEL_FREE_CASES_H_
#define TF_FUSE_CC_TESTING_CHANNELS_CHANNEL_FREE_CASES_H_

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/borrowed_tensor.h"
#include "collectives/remote_access/awaited_members.h"
#include "collectives/remote_access/calls_under_way.h"
#include "collectives/remote_access/remote_access.h"
#include "collectives/remote_access/step_chunks.h"
#include "collectives/runtime/group_resolver.h"
#include "testing/channels/channel_task.h"

namespace tf_fuse {
namespace testing {

namespace {

using tensorflow::Tensor;

constexpr int64_t kStep = 3;
constexpr uint64_t kBytes = 8;

// Its requests pass from thread to thread in a way that ThreadSanitizer sees.
class SeenRemoteAccess : public FuseRemoteAccess {
 public:
  SeenRemoteAccess(const tensorflow::DeviceMgr* devices,
                   std::shared_ptr<UnderWay> under_way)
      : FuseRemoteAccess(devices, /*resolver=*/nullptr, /*queue=*/nullptr,
                         /*workers=*/nullptr, kStep,
                         "/job:worker/replica:0/task:0", std::move(under_way)),
        rendezvous_(kStep, devices) {}
  SeenRendezvous* buf_rendezvous() override { return &rendezvous_; }
  void StartAbort(const absl::Status& status) override {
    FuseRemoteAccess::StartAbort(status);
    std::lock_guard<std::recursive_mutex> lock(rendezvous_.mu);
    rendezvous_.StartAbort(status);
  }

 private:
  SeenRendezvous rendezvous_;
};

// An executor with our remote access, and nothing else.
class FuseExecutor : public tensorflow::CollectiveExecutor {
 public:
  FuseExecutor(const tensorflow::DeviceMgr* devices,
               std::shared_ptr<UnderWay> under_way)
      : CollectiveExecutor(nullptr), access_(devices, std::move(under_way)) {}
  void RunClosure(std::function<void()> closure) override { closure(); }
  SeenRemoteAccess* remote_access() override { return &access_; }

 private:
  SeenRemoteAccess access_;
};

// Reports its steps, so nobody else may look one up in it.
class ReportingManager : public Manager {
 public:
  using Manager::Manager;
  tensorflow::CollectiveExecutor* FindOrCreate(int64_t step) override {
    looked_up = true;
    return Manager::FindOrCreate(step);
  }
  bool looked_up = false;
};

struct Request {
  Request(const std::shared_ptr<ChunkSource>& source,
          const tensorflow::Device& device, const std::string& key) {
    ChunkKey chunk;
    chunk.step_id = kStep;
    chunk.key = key;
    chunk.device = device.name();
    chunk.device_incarnation = kIncarnation;
    chunk.bytes = kBytes;
    source->Take(chunk, &cancellation,
                 [this](absl::StatusOr<PostedChunk> posted) {
                   status = posted.status();
                   if (posted.ok()) posted->done();
                   answered.Add();
                 });
  }

  tensorflow::CancellationManager cancellation;
  absl::Status status;
  Ended answered;
};

bool WhatWaitsMovesOrEnds() {
  tensorflow::StaticDeviceMgr devices(
      std::make_unique<HostCpu>("/job:worker/replica:0/task:0", kIncarnation));
  tensorflow::Device* const device = devices.HostCPU();
  ReportingManager before(&devices);
  ReportingManager after(&devices);
  const auto under_way = std::make_shared<UnderWay>();
  const auto source = std::make_shared<StepChunks>();
  tensorflow::core::RefCountPtr<FuseExecutor> old_step(
      new FuseExecutor(&devices, under_way));
  source->Attach(&before);
  Request early(source, *device, "9:9:0:0:early");
  source->StepBegan(&before, kStep, old_step.get());
  Request of_begun(source, *device, "1:2:0:0:a");
  Request of_next(source, *device, "1:22:0:0:a");
  const auto call = under_way->Begin({kStep, 1, "1:2:"});
  under_way->Begin({kStep, 1, "1:22:"});  // Ends at once.
  const absl::Status why = absl::AbortedError("anew");
  source->Attach(&after);
  // At the manager that is in place the step does not run.
  Request between(source, *device, "1:33:0:0:a");
  under_way->Retire(why);
  old_step->remote_access()->StartAbort(why);
  if (!of_begun.answered.WaitFor(1) || of_begun.status != why) {
    return Fails(absl::StrCat("a request of a call that was under way: ",
                              of_begun.status.ToString()));
  }
  if (under_way->AwaitEnd(absl::InfinitePast()) != 1) {
    return Fails("one call is under way");
  }
  tensorflow::core::RefCountPtr<FuseExecutor> new_step(
      new FuseExecutor(&devices, std::make_shared<UnderWay>()));
  source->StepBegan(&after, kStep, new_step.get());
  char bytes[kBytes] = {};
  const Tensor tensor = BorrowedTensor(bytes, kBytes);
  Ended taken;
  const std::vector<std::pair<Request*, std::string>> moved = {
      {&early, "9:9:0:0:early"},
      {&of_next, "1:22:0:0:a"},
      {&between, "1:33:0:0:a"}};
  for (const auto& [request, key] : moved) {
    SeenRendezvous* const rendezvous =
        new_step->remote_access()->buf_rendezvous();
    std::lock_guard<std::recursive_mutex> lock(rendezvous->mu);
    rendezvous->ProvideBuf(
        key, device, nullptr, &tensor, tensorflow::AllocatorAttributes(),
        [&taken](const absl::Status&) { taken.Add(); }, nullptr);
  }
  for (const auto& [request, key] : moved) {
    if (!request->answered.WaitFor(1) || !request->status.ok()) {
      return Fails(absl::StrCat("a request that was to move, ", key, ": ",
                                request->status.ToString()));
    }
  }
  if (!taken.WaitFor(moved.size())) return Fails("a chunk is not taken");
  if (before.looked_up || after.looked_up) {
    return Fails("a request looked an executor up, and may have made one");
  }
  source->End(&after);
  return true;
}

bool JoinsAreOfWhoWaits() {
  tensorflow::DeviceAttributes device;
  device.set_name("/job:worker/replica:0/task:1/device:CPU:0");
  device.set_incarnation(1);
  const auto join = [&device](int32_t key) {
    Joins::Join one = {device, {}, {}};
    one.group.group_key = key;
    return one;
  };
  Joins joins;
  // This task comes to group 1 while the device does.
  const uint64_t uses = joins.Come(device, 1);
  joins.CountUse(1);
  joins.Add(join(1), uses);
  if (!joins.All().empty()) return Fails("a join of a group that was met");
  joins.Add(join(1), joins.Come(device, 1));
  joins.Add(join(2), joins.Come(device, 2));
  device.set_incarnation(2);
  joins.Add(join(3), joins.Come(device, 3));
  std::vector<Joins::Join> all = joins.All();
  if (all.size() != 1 || all[0].group.group_key != 3 ||
      all[0].device.incarnation() != 2) {
    return Fails("joins of a device that is gone");
  }
  tensorflow::CompleteInstanceRequest request;
  request.set_device(device.name());
  for (const int group : {1, 3}) {
    request.set_group_key(group);
    joins.AddBroadcast(request);
  }
  all = joins.All();
  if (all.size() != 1 || all[0].broadcasts.size() != 1) {
    return Fails("broadcasts of a device that waits");
  }
  return true;
}

bool ErrorsWaitForTheNextUse() {
  tensorflow::DeviceAttributes device;
  device.set_name("/job:worker/replica:0/task:1/device:CPU:0");
  Joins joins;
  const auto keep = [&](int group, bool is_current, int* ended) {
    tensorflow::CompleteInstanceRequest request;
    request.set_device(device.name());
    request.set_group_key(group);
    return joins.KeepError(
        request, [is_current] { return is_current; }, [ended] { ++*ended; });
  };
  int ended = 0;
  if (keep(1, true, &ended)) return Fails("an error of who has not joined");
  for (const int group : {1, 2}) {
    Joins::Join one = {device, {}, {}};
    one.group.group_key = group;
    joins.Add(std::move(one), joins.Come(device, group));
  }
  if (keep(1, false, &ended)) return Fails("an error after a new beginning");
  if (!keep(1, true, &ended) || !keep(2, true, &ended) || ended != 0) {
    return Fails("an error of who has joined");
  }
  joins.CountUse(1);
  if (ended != 1) return Fails("an error of a group that was met");
  joins.GoOn();
  if (ended != 2) return Fails("an error at a new beginning");
  return true;
}

// What a task answers that is asked whom `device` waits for.
std::set<int> Answer(const std::string& device) {
  ChunkKey question;
  question.key = WaitsKey("1:2:0:0", /*who=*/0, /*number=*/0);
  question.device = device;
  question.bytes = kWaitsBytes;
  std::set<int> members;
  AnswerWaits(question, [&members](absl::StatusOr<PostedChunk> posted) {
    members = WaitsIn(posted->data);
    posted->done();
  });
  return members;
}

bool StagesAnswerTogether() {
  const auto first =
      RegisterWaits("1:2:0:0", "a", [] { return std::set<int>{1}; });
  auto second = RegisterWaits(absl::StrCat("1:2:0:0", kSumsStage), "a",
                              [] { return std::set<int>{2}; });
  if (Answer("a") != std::set<int>{1, 2}) return Fails("two stages");
  second = nullptr;
  if (Answer("a") != std::set<int>{1}) return Fails("the end of a stage");
  return true;
}

}  // namespace

inline bool TestSource() {
  return WhatWaitsMovesOrEnds() && JoinsAreOfWhoWaits() &&
         ErrorsWaitForTheNextUse() && StagesAnswerTogether();
}

}  // namespace testing
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TESTING_CHANNELS_CHANNEL_FREE_CASES_H_
