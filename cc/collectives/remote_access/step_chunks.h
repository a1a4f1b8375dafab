// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Keeps the chunks that a task of this process posts in the steps of
// collectives, for data channels and RPCs that ask for them.

#ifndef TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_STEP_CHUNKS_H_
#define TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_STEP_CHUNKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "channel/chunk_source.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/platform/refcount.h"

namespace tf_fuse {

// A task: it has one manager of collectives at a time, and another one after
// TensorFlow has updated its server. Made by std::make_shared.
class StepChunks : public ChunkSource,
                   public std::enable_shared_from_this<StepChunks> {
 public:
  using Manager = tensorflow::CollectiveExecutorMgrInterface;

  // Without a manager, until Attach().
  StepChunks() = default;
  // With one that does not say which steps run: all of them do.
  explicit StepChunks(Manager* manager)
      : manager_(manager), knows_steps_(false) {}

  // Calls `done` when the chunk is posted, the step is aborted, or
  // `cancellation` is cancelled, which lives until then. A request for a step
  // that does not run here waits until it does, whichever manager the task has
  // then: TensorFlow keeps an executor for each step that it is asked for, and
  // a peer may ask for any. So does one for a collective that had not begun
  // here when the manager was retired (UnderWay). Errors: those of
  // BufRendezvous; what the manager was retired with; InvalidArgument if the
  // chunk has another size; Unavailable when the task has ended.
  void Take(const ChunkKey& key, tensorflow::CancellationManager* cancellation,
            PostedDone done) override;

  // Calls `then` when the step runs; with an error if `cancellation`, which
  // lives until then, is cancelled, or the task ends. `key` is for the text.
  void AwaitStep(int64_t step_id, const std::string& key,
                 tensorflow::CancellationManager* cancellation,
                 std::function<void(const absl::Status&)> then);

  // Replaces the manager. What waits at the one before moves to this one when
  // that is retired.
  void Attach(Manager* manager);

  // What a manager reports of its steps; of one that was replaced nothing.
  void StepBegan(const Manager* manager, int64_t step_id,
                 tensorflow::CollectiveExecutor* executor);
  void StepEnded(const Manager* manager, int64_t step_id);
  void AllStepsEnded(const Manager* manager);

  // The manager ends, and with it the task if it was not replaced: then returns
  // when nobody uses it any more.
  void End(const Manager* manager);

 private:
  struct Early;
  using Requests = std::multimap<int64_t, std::shared_ptr<Early>>;
  using Executor =
      tensorflow::core::RefCountPtr<tensorflow::CollectiveExecutor>;

  // Keeps a request for later. False if it need not wait.
  bool Wait(const std::shared_ptr<Early>& request);
  void Forget(const std::shared_ptr<Early>& request);
  // Starts requests that have waited, on other threads.
  void Start(const Requests& requests, const absl::Status& status);
  void TakeFrom(Executor executor, const ChunkKey& key,
                tensorflow::CancellationManager* cancellation,
                const PostedDone& done);
  bool MustWait(int64_t step_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  Manager* manager_ ABSL_GUARDED_BY(mu_) = nullptr;
  const bool knows_steps_ = true;
  // Of `manager_`, those that run. Requests look none up there: it would make
  // one for a step that ends meanwhile, and when it is retired meanwhile.
  std::map<int64_t, Executor> steps_ ABSL_GUARDED_BY(mu_);
  Requests early_ ABSL_GUARDED_BY(mu_);  // By step.
  int users_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_STEP_CHUNKS_H_
