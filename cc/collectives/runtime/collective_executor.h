// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs the collectives of one step under the protocol "grpc+fuse".

#ifndef TF_FUSE_CC_COLLECTIVES_RUNTIME_COLLECTIVE_EXECUTOR_H_
#define TF_FUSE_CC_COLLECTIVES_RUNTIME_COLLECTIVE_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "collectives/remote_access/calls_under_way.h"
#include "collectives/remote_access/remote_access.h"
#include "tensorflow/core/common_runtime/base_collective_executor.h"

namespace tf_fuse {

// A payload of the status of CollectiveExecutor::StartAbort(): the key of the
// group that was waited for too long. Who has come to it is put into the text,
// which may take some seconds.
inline constexpr char kAwaitedGroup[] = "tf_fuse/awaited_group";

// TensorFlow's, with two differences. A collective without an implementation is
// an error of that call alone: each member finds out for itself, so there is no
// abort, which would end all later collectives. And a call that has waited too
// long for its group says who has come, and who has not.
class FuseCollectiveExecutor : public tensorflow::BaseCollectiveExecutor {
 public:
  // `kept` stays as long as this does.
  FuseCollectiveExecutor(tensorflow::CollectiveExecutorMgrInterface* manager,
                         FuseRemoteAccess* access, int64_t step_id,
                         const tensorflow::DeviceMgr* devices,
                         std::shared_ptr<tensorflow::UnboundedWorkQueue> queue,
                         std::shared_ptr<void> kept);
  ~FuseCollectiveExecutor() override;

  void StartAbort(const absl::Status& status) override;
  // Ends it with its manager.
  void Retire(const absl::Status& status);

  void CompleteParamsAsync(const tensorflow::DeviceAttributes& device,
                           tensorflow::CollectiveParams* params,
                           tensorflow::CancellationManager* cancellation,
                           tensorflow::StatusCallback done) override;
  void ExecuteAsync(tensorflow::OpKernelContext* context,
                    const tensorflow::CollectiveParams* params,
                    const std::string& key,
                    tensorflow::StatusCallback done) override;

 private:
  class PendingGroups;

  // What follows an operation, in `done`, belongs to the call.
  tensorflow::StatusCallback Counted(const tensorflow::CollectiveParams& params,
                                     tensorflow::StatusCallback done);

  const std::shared_ptr<void> kept_;
  const std::shared_ptr<UnderWay> under_way_;
  const std::shared_ptr<PendingGroups> groups_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_RUNTIME_COLLECTIVE_EXECUTOR_H_
