// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/runtime/collective_executor.h"

#include <atomic>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/metrics.h"
#include "collectives/runtime/group_resolver.h"

namespace tf_fuse {

using tensorflow::CancellationManager;
using tensorflow::CollectiveParams;
using tensorflow::DeviceAttributes;
using tensorflow::DeviceMgr;
using tensorflow::StatusCallback;

namespace {

// TensorFlow's error of a call whose group is not complete in time.
constexpr char kTimedOut[] =
    "Collective has timed out waiting for other workers.";

bool IsTimedOut(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) && status.message() == kTimedOut;
}

// Counts the step of a collective. Those of one step follow each other.
void CountStep(int64_t step_id) {
  static std::atomic<int64_t> last{0};
  if (last.exchange(step_id) == step_id) return;
  Metrics::Get()->collective_steps.fetch_add(1);
}

}  // namespace

// The groups that calls of one executor wait for.
class FuseCollectiveExecutor::PendingGroups {
 public:
  void Add(int32_t key) {
    absl::MutexLock lock(&mu_);
    keys_.insert(key);
  }
  void Remove(int32_t key) {
    absl::MutexLock lock(&mu_);
    keys_.erase(keys_.find(key));
  }

  // `status` of a call that has timed out, with who has come to the groups:
  // the first time, `who_has_come` is called for each.
  absl::Status Named(const absl::Status& status,
                     const std::function<std::string(int32_t)>& who_has_come) {
    absl::MutexLock asking(&asking_mu_);
    if (text_.empty()) {
      text_ = kTimedOut;
      std::set<int32_t> keys;
      {
        absl::MutexLock lock(&mu_);
        keys.insert(keys_.begin(), keys_.end());
      }
      for (const int32_t key : keys) absl::StrAppend(&text_, who_has_come(key));
    }
    return absl::Status(status.code(), text_);
  }
  absl::Status Named(const absl::Status& status) {
    return Named(status, [](int32_t key) { return ""; });
  }

 private:
  absl::Mutex asking_mu_;  // Is held while others are asked.
  std::string text_ ABSL_GUARDED_BY(asking_mu_);
  absl::Mutex mu_;
  std::multiset<int32_t> keys_ ABSL_GUARDED_BY(mu_);
};

FuseCollectiveExecutor::FuseCollectiveExecutor(
    tensorflow::CollectiveExecutorMgrInterface* manager,
    FuseRemoteAccess* access, int64_t step_id, const DeviceMgr* devices,
    std::shared_ptr<tensorflow::UnboundedWorkQueue> queue,
    std::shared_ptr<void> kept)
    : BaseCollectiveExecutor(manager, access, step_id, devices,
                             std::move(queue)),
      kept_(std::move(kept)),
      under_way_(access->under_way()),
      groups_(std::make_shared<PendingGroups>()) {}

FuseCollectiveExecutor::~FuseCollectiveExecutor() = default;

void FuseCollectiveExecutor::StartAbort(const absl::Status& status) {
  if (status.GetPayload(kUnknownCollective).has_value()) return;
  const auto who_has_come = [this](int32_t key) {
    auto* const resolver =
        dynamic_cast<FuseParamResolver*>(cem_->GetParamResolver());
    return resolver == nullptr ? "" : resolver->WhoHasCome(key);
  };
  int32_t key = 0;
  const std::optional<absl::Cord> group = status.GetPayload(kAwaitedGroup);
  absl::Status named = status;
  if (group.has_value() && absl::SimpleAtoi(std::string(*group), &key)) {
    named = absl::Status(status.code(),
                         absl::StrCat(status.message(), who_has_come(key)));
  } else if (IsTimedOut(status)) {
    // TensorFlow calls this on a thread that only waited for the time to
    // pass, before it ends the call: it may wait.
    named = groups_->Named(status, who_has_come);
  }
  BaseCollectiveExecutor::StartAbort(named);
}

// One with calls is aborted as TensorFlow does it, which then ends them all
// with this status, whatever of them hears of it first. It logs that, so not
// for others.
void FuseCollectiveExecutor::Retire(const absl::Status& status) {
  if (under_way_->HasStep(step_id_)) {
    BaseCollectiveExecutor::StartAbort(status);
  } else {
    remote_access()->StartAbort(status);
  }
}

void FuseCollectiveExecutor::CompleteParamsAsync(
    const DeviceAttributes& device, CollectiveParams* params,
    CancellationManager* cancellation, StatusCallback done) {
  const absl::Status retired = under_way_->retired();
  if (!retired.ok()) return done(retired);
  const int32_t key = params->group.group_key;
  groups_->Add(key);
  BaseCollectiveExecutor::CompleteParamsAsync(
      device, params, cancellation,
      Counted(*params, [groups = groups_, key,
                        done = std::move(done)](const absl::Status& status) {
        groups->Remove(key);
        done(IsTimedOut(status) ? groups->Named(status) : status);
      }));
}

void FuseCollectiveExecutor::ExecuteAsync(tensorflow::OpKernelContext* context,
                                          const CollectiveParams* params,
                                          const std::string& key,
                                          StatusCallback done) {
  CountStep(context->step_id());
  BaseCollectiveExecutor::ExecuteAsync(context, params, key,
                                       Counted(*params, std::move(done)));
}

StatusCallback FuseCollectiveExecutor::Counted(const CollectiveParams& params,
                                               StatusCallback done) {
  // As the keys of TensorFlow's chunks begin.
  auto call =
      under_way_->Begin({step_id_, params.group.group_key,
                         absl::StrCat(params.group.group_key, ":",
                                      params.instance.instance_key, ":")});
  return [call, done = std::move(done)](const absl::Status& status) mutable {
    done(status);
    call = nullptr;
  };
}

}  // namespace tf_fuse
