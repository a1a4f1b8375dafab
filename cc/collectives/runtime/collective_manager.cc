// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/runtime/collective_manager.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "channel/peer_card.h"
#include "collectives/remote_access/remote_access.h"
#include "collectives/runtime/collective_executor.h"
#include "collectives/runtime/group_resolver.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/device_resolver_distributed.h"
#include "tensorflow/core/platform/refcount.h"

namespace tf_fuse {

using tensorflow::CollectiveExecutor;
using tensorflow::ConfigProto;
using tensorflow::DeviceMgr;
using tensorflow::DeviceResolverDistributed;
using tensorflow::StatusCallback;
using tensorflow::WorkerCacheInterface;

namespace {

class FuseCollectiveMgr : public tensorflow::RpcCollectiveExecutorMgr {
 public:
  FuseCollectiveMgr(const ConfigProto& config, const DeviceMgr* devices,
                    std::unique_ptr<DeviceResolverDistributed> device_resolver,
                    std::unique_ptr<FuseParamResolver> param_resolver,
                    std::shared_ptr<WorkerCacheInterface> workers,
                    const std::shared_ptr<CollectiveTask>& task)
      : RpcCollectiveExecutorMgr(config, devices, std::move(device_resolver),
                                 std::move(param_resolver),
                                 /*nccl_communicator=*/nullptr, workers.get(),
                                 task->name),
        workers_(std::move(workers)),
        source_(task->source),
        joins_(task->joins) {
    source_->Attach(this);
  }

  ~FuseCollectiveMgr() override { source_->End(this); }

  CollectiveExecutor* FindOrCreate(int64_t step_id) override {
    CollectiveExecutor* executor = nullptr;
    {
      absl::MutexLock lock(&mu_);
      executor = RpcCollectiveExecutorMgr::FindOrCreate(step_id);
      const bool began =
          steps_.try_emplace(step_id, tsl::core::GetNewRef(executor)).second;
      if (began) source_->StepBegan(this, step_id, executor);
    }
    // After the manager was retired, too.
    const absl::Status retired = under_way_->retired();
    if (!retired.ok()) executor->remote_access()->StartAbort(retired);
    return executor;
  }

  void Cleanup(int64_t step_id) override {
    Executor last;  // Goes without the lock.
    absl::MutexLock lock(&mu_);
    auto found = steps_.find(step_id);
    if (found == steps_.end()) return;
    last = std::move(found->second);
    steps_.erase(found);
    source_->StepEnded(this, step_id);
    RpcCollectiveExecutorMgr::Cleanup(step_id);
  }
  void CleanupAll() override {
    Steps last;
    absl::MutexLock lock(&mu_);
    last.swap(steps_);
    source_->AllStepsEnded(this);
    RpcCollectiveExecutorMgr::CleanupAll();
  }

  void Retire(const absl::Status& status) {
    under_way_->Retire(status);
    GetParamResolver()->StartAbort(status);
    std::vector<Executor> executors;
    {
      absl::MutexLock lock(&mu_);
      for (const auto& [step, executor] : steps_) {
        executors.push_back(tsl::core::GetNewRef(executor.get()));
      }
    }
    for (const Executor& executor : executors) {
      static_cast<FuseCollectiveExecutor*>(executor.get())->Retire(status);
    }
    CleanupAll();
  }

  void JoinEarly() {
    static_cast<FuseParamResolver*>(GetParamResolver())->JoinEarly();
  }

  // Whether nobody holds an executor of it.
  bool IsUnused() const { return executors_.use_count() == 1; }
  const std::shared_ptr<StepChunks>& source() const { return source_; }
  const std::shared_ptr<Joins>& joins() const { return joins_; }
  const std::shared_ptr<UnderWay>& under_way() const { return under_way_; }

 protected:
  CollectiveExecutor* Create(int64_t step_id) override {
    auto* access =
        new FuseRemoteAccess(dev_mgr_, dev_resolver_.get(), work_queue_,
                             worker_cache_, step_id, task_name_, under_way_);
    return new FuseCollectiveExecutor(this, access, step_id, dev_mgr_,
                                      work_queue_, executors_);
  }

 private:
  using Executor = tensorflow::core::RefCountPtr<CollectiveExecutor>;
  using Steps = std::map<int64_t, Executor>;

  const std::shared_ptr<WorkerCacheInterface> workers_;
  const std::shared_ptr<StepChunks> source_;
  const std::shared_ptr<Joins> joins_;
  const std::shared_ptr<UnderWay> under_way_ = std::make_shared<UnderWay>();
  // Each executor holds it. (TensorFlow keeps some with kernels, until it
  // forgets these.)
  const std::shared_ptr<void> executors_ = std::make_shared<int>();
  absl::Mutex mu_;  // Keeps TensorFlow's table and these alike.
  Steps steps_ ABSL_GUARDED_BY(mu_);
};

// What TensorFlow knows as long as the server runs: its threads read where the
// manager is without a lock. Hands all on to the one that is in place.
class RenewedCollectiveMgr : public tensorflow::CollectiveExecutorMgrInterface {
 public:
  RenewedCollectiveMgr(const tensorflow::WorkerEnv* env,
                       std::shared_ptr<CollectiveTask> task,
                       std::shared_ptr<FuseCollectiveMgr> first)
      : env_(env), task_(std::move(task)), current_(std::move(first)) {}

  CollectiveExecutor* FindOrCreate(int64_t step_id) override {
    return current()->FindOrCreate(step_id);
  }
  void Cleanup(int64_t step_id) override { current()->Cleanup(step_id); }
  void CleanupAll() override { current()->CleanupAll(); }
  // (Who uses these does so for less than a replaced one stays.)
  tensorflow::ParamResolverInterface* GetParamResolver() const override {
    return current()->GetParamResolver();
  }
  tensorflow::DeviceResolverInterface* GetDeviceResolver() const override {
    return current()->GetDeviceResolver();
  }
  tensorflow::NcclCommunicatorInterface* GetNcclCommunicator() const override {
    return current()->GetNcclCommunicator();
  }
  void GetStepSequenceAsync(const tensorflow::GetStepSequenceRequest* request,
                            tensorflow::GetStepSequenceResponse* response,
                            const StatusCallback& done) override {
    current()->GetStepSequenceAsync(request, response, done);
  }
  void RefreshStepIdSequenceAsync(int64_t graph_key,
                                  const StatusCallback& done) override {
    current()->RefreshStepIdSequenceAsync(graph_key, done);
  }
  int64_t NextStepId(int64_t graph_key) override {
    return current()->NextStepId(graph_key);
  }
  void RetireStepId(int64_t graph_key, int64_t step_id) override {
    current()->RetireStepId(graph_key, step_id);
  }

  std::shared_ptr<FuseCollectiveMgr> current() const {
    absl::MutexLock lock(&mu_);
    return current_;
  }

  absl::Status Renew(const ConfigProto& config,
                     std::shared_ptr<WorkerCacheInterface> workers,
                     const std::string& host, const absl::Status& why) {
    absl::MutexLock renewing(&renew_mu_);
    const std::shared_ptr<FuseCollectiveMgr> next =
        MakeManager(config, *env_, std::move(workers), host, task_);
    std::shared_ptr<FuseCollectiveMgr> before = next;
    {
      absl::MutexLock lock(&mu_);
      before.swap(current_);
    }
    const bool had_calls =
        before->under_way()->AwaitEnd(absl::InfinitePast()) > 0;
    before->Retire(why);
    next->JoinEarly();  // Who had an answer of the other one meanwhile.
    retired_.push_back(before->under_way());
    EndLater(std::move(before));
    // Calls of earlier ones, too: that renewal failed, and was made again.
    const absl::Time deadline = absl::Now() + kEndOfAborted;
    size_t left = 0;
    for (auto it = retired_.begin(); it != retired_.end();) {
      const size_t calls = (*it)->AwaitEnd(deadline);
      left += calls;
      it = calls == 0 ? retired_.erase(it) : it + 1;
    }
    if (left == 0) {
      if (had_calls) absl::SleepFor(kWayOut);
      return absl::OkStatus();
    }
    return absl::DeadlineExceededError(absl::StrCat(
        left, " calls of collectives of ", task_->name, " have not ended ",
        absl::FormatDuration(kEndOfAborted),
        " after they were aborted because collectives began anew, and "
        "TensorFlow would now free the functions that they are in; let them "
        "end, and try again"));
  }

  static std::shared_ptr<FuseCollectiveMgr> MakeManager(
      const ConfigProto& config, const tensorflow::WorkerEnv& env,
      std::shared_ptr<WorkerCacheInterface> workers, const std::string& host,
      const std::shared_ptr<CollectiveTask>& task) {
    auto device_resolver =
        std::make_unique<DeviceResolverDistributed>(env.device_mgr);
    auto param_resolver = std::make_unique<FuseParamResolver>(
        config, env.device_mgr, device_resolver.get(), workers, task->name,
        host, task->token, task->joins);
    param_resolver->JoinEarly();  // Before it is asked for instances.
    return std::make_shared<FuseCollectiveMgr>(
        config, env.device_mgr, std::move(device_resolver),
        std::move(param_resolver), std::move(workers), task);
  }

 private:
  static constexpr absl::Duration kEndOfAborted = absl::Seconds(10);
  static constexpr absl::Duration kUseAfterwards = absl::Minutes(1);
  // The functions of calls that have ended are still in their callers, and let
  // go of what TensorFlow frees next when these go on. Nothing says when.
  static constexpr absl::Duration kWayOut = absl::Seconds(1);

  // What is under way in other threads may still use it for a while.
  static void EndLater(std::shared_ptr<FuseCollectiveMgr> manager) {
    tensorflow::Env::Default()->SchedClosureAfter(
        absl::ToInt64Microseconds(kUseAfterwards),
        [manager = std::move(manager)]() mutable {
          if (!manager->IsUnused()) EndLater(std::move(manager));
        });
  }

  const tensorflow::WorkerEnv* const env_;
  const std::shared_ptr<CollectiveTask> task_;
  absl::Mutex renew_mu_;
  // Those with calls that have not ended.
  std::vector<std::shared_ptr<UnderWay>> retired_ ABSL_GUARDED_BY(renew_mu_);
  mutable absl::Mutex mu_;
  std::shared_ptr<FuseCollectiveMgr> current_ ABSL_GUARDED_BY(mu_);
};

// The current manager; null if `manager` is not one of ours.
std::shared_ptr<FuseCollectiveMgr> CurrentOf(
    const tensorflow::CollectiveExecutorMgrInterface* manager) {
  const auto* const renewed =
      dynamic_cast<const RenewedCollectiveMgr*>(manager);
  return renewed == nullptr ? nullptr : renewed->current();
}

}  // namespace

CollectiveTask::CollectiveTask(std::string name)
    : name(std::move(name)),
      token(RandomNumber()),
      source(std::make_shared<StepChunks>()),
      joins(std::make_shared<Joins>()) {
  ChunkSource::Register(token, source);
}

CollectiveTask::~CollectiveTask() { ChunkSource::Unregister(token); }

std::unique_ptr<tensorflow::CollectiveExecutorMgrInterface>
CreateFuseCollectiveMgr(const ConfigProto& config,
                        const tensorflow::WorkerEnv* env,
                        std::shared_ptr<WorkerCacheInterface> workers,
                        const std::string& host,
                        const std::shared_ptr<CollectiveTask>& task) {
  return std::make_unique<RenewedCollectiveMgr>(
      env, task,
      RenewedCollectiveMgr::MakeManager(config, *env, std::move(workers), host,
                                        task));
}

absl::Status RenewCollectives(
    tensorflow::CollectiveExecutorMgrInterface* manager,
    const ConfigProto& config, std::shared_ptr<WorkerCacheInterface> workers,
    const std::string& host, const absl::Status& why) {
  return static_cast<RenewedCollectiveMgr*>(manager)->Renew(
      config, std::move(workers), host, why);
}

v1::WaitingGroups WaitingGroupsOf(
    const tensorflow::CollectiveExecutorMgrInterface* manager) {
  const std::shared_ptr<FuseCollectiveMgr> current = CurrentOf(manager);
  if (current == nullptr) return {};
  auto* const resolver =
      dynamic_cast<FuseParamResolver*>(current->GetParamResolver());
  return resolver == nullptr ? v1::WaitingGroups() : resolver->Waiting();
}

std::shared_ptr<StepChunks> SourceOf(
    tensorflow::CollectiveExecutorMgrInterface* manager) {
  const std::shared_ptr<FuseCollectiveMgr> current = CurrentOf(manager);
  return current == nullptr ? nullptr : current->source();
}

std::shared_ptr<Joins> JoinsIn(
    tensorflow::CollectiveExecutorMgrInterface* manager) {
  const std::shared_ptr<FuseCollectiveMgr> current = CurrentOf(manager);
  return current == nullptr ? nullptr : current->joins();
}

std::shared_ptr<UnderWay> UnderWayIn(
    tensorflow::CollectiveExecutorMgrInterface* manager) {
  const std::shared_ptr<FuseCollectiveMgr> current = CurrentOf(manager);
  return current == nullptr ? std::make_shared<UnderWay>()
                            : current->under_way();
}

}  // namespace tf_fuse
