// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs a task with data channels and no server, for programs that test them;
// each program is one source file.

#ifndef TF_FUSE_CC_TESTING_CHANNELS_CHANNEL_TASK_H_
#define TF_FUSE_CC_TESTING_CHANNELS_CHANNEL_TASK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/synchronization/mutex.h"
#include "channel/chunk_server.h"
#include "channel/peer_card.h"
#include "collectives/remote_access/step_chunks.h"
#include "tensorflow/core/common_runtime/buf_rendezvous.h"
#include "tensorflow/core/common_runtime/collective_rma_local.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "testing/loopback_tasks.h"
#include "testing/program_main.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {
namespace testing {

inline constexpr uint64_t kIncarnation = 7;

// ThreadSanitizer does not see the lock by which TensorFlow's rendezvous hands
// a request from one thread to another; so there is one around it that it sees.
class SeenRendezvous : public tensorflow::BufRendezvous {
 public:
  using BufRendezvous::BufRendezvous;

  void ConsumeBuf(const std::string& key, const std::string& device,
                  const uint64_t incarnation, const ConsumerCallback& done,
                  tensorflow::CancellationManager* cancellation) override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    BufRendezvous::ConsumeBuf(key, device, incarnation, done, cancellation);
  }

  // Its callbacks come back here.
  std::recursive_mutex mu;
};

class Access : public tensorflow::CollectiveRemoteAccessLocal {
 public:
  Access(const tensorflow::DeviceMgr* devices, int64_t step)
      : CollectiveRemoteAccessLocal(devices, nullptr, step),
        rendezvous_(step, devices) {}
  tensorflow::BufRendezvous* buf_rendezvous() override { return &rendezvous_; }
  SeenRendezvous* seen() { return &rendezvous_; }
  void StartAbort(const absl::Status& status) override {
    std::lock_guard<std::recursive_mutex> lock(rendezvous_.mu);
    rendezvous_.StartAbort(status);
  }

 private:
  SeenRendezvous rendezvous_;
};

// Executors that do nothing but hold the rendezvous of their step.
class Executor : public tensorflow::CollectiveExecutor {
 public:
  Executor(tensorflow::CollectiveExecutorMgrInterface* manager,
           const tensorflow::DeviceMgr* devices, int64_t step)
      : CollectiveExecutor(manager), access_(devices, step) {}
  void RunClosure(std::function<void()> closure) override { closure(); }
  Access* remote_access() override { return &access_; }

 private:
  Access access_;
};

class Manager : public tensorflow::CollectiveExecutorMgrInterface {
 public:
  explicit Manager(const tensorflow::DeviceMgr* devices) : devices_(devices) {}

  tensorflow::CollectiveExecutor* FindOrCreate(int64_t step) override {
    absl::MutexLock lock(&mu_);
    tensorflow::CollectiveExecutor*& executor = executors_[step];
    if (executor == nullptr) executor = new Executor(this, devices_, step);
    executor->Ref();
    return executor;
  }
  void Cleanup(int64_t step) override {
    tensorflow::CollectiveExecutor* executor = nullptr;
    {
      absl::MutexLock lock(&mu_);
      auto found = executors_.find(step);
      if (found == executors_.end()) return;
      executor = found->second;
      executors_.erase(found);
    }
    executor->Unref();
  }
  void CleanupAll() override {}
  tensorflow::ParamResolverInterface* GetParamResolver() const override {
    return nullptr;
  }
  tensorflow::DeviceResolverInterface* GetDeviceResolver() const override {
    return nullptr;
  }
  tensorflow::NcclCommunicatorInterface* GetNcclCommunicator() const override {
    return nullptr;
  }
  void GetStepSequenceAsync(const tensorflow::GetStepSequenceRequest*,
                            tensorflow::GetStepSequenceResponse*,
                            const tensorflow::StatusCallback& done) override {
    done(absl::UnimplementedError(""));
  }
  void RefreshStepIdSequenceAsync(
      int64_t, const tensorflow::StatusCallback& done) override {
    done(absl::UnimplementedError(""));
  }
  int64_t NextStepId(int64_t) override { return 0; }
  void RetireStepId(int64_t, int64_t) override {}

 private:
  const tensorflow::DeviceMgr* const devices_;
  absl::Mutex mu_;
  std::map<int64_t, tensorflow::CollectiveExecutor*> executors_
      ABSL_GUARDED_BY(mu_);
};

// A task that others take chunks from.
struct TestTask {
  explicit TestTask(uint64_t task_token)
      : devices(std::make_unique<HostCpu>("/job:worker/replica:0/task:0",
                                          kIncarnation)),
        manager(&devices) {
    ChunkSource::Register(task_token, std::make_shared<StepChunks>(&manager));
    card.set_version(kChannelVersion);
    FillInDataPaths("", &card);
  }

  void Post(int64_t step, const std::string& key,
            const tensorflow::Tensor* tensor,
            const tensorflow::StatusCallback& done) {
    tensorflow::CollectiveExecutor::Handle executor(manager.FindOrCreate(step),
                                                    true);
    SeenRendezvous* const rendezvous =
        static_cast<Executor*>(executor.get())->remote_access()->seen();
    std::lock_guard<std::recursive_mutex> lock(rendezvous->mu);
    rendezvous->ProvideBuf(key, devices.HostCPU(), nullptr, tensor,
                           tensorflow::AllocatorAttributes(), done, nullptr);
  }

  // Ends what was posted and what is waited for.
  void Abort(int64_t step) {
    tensorflow::CollectiveExecutor::Handle executor(manager.FindOrCreate(step),
                                                    true);
    executor.get()->remote_access()->StartAbort(
        absl::AbortedError("the step is over"));
  }

  tensorflow::StaticDeviceMgr devices;
  Manager manager;
  v1::PeerCard card;
};

}  // namespace testing
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TESTING_CHANNELS_CHANNEL_TASK_H_
