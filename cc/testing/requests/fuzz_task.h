// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs the fuzzer's actions on a task, and checks what must hold after any of
// them: each request is answered once, each answer holds what was sent, and
// nothing is left when the steps are over.

#ifndef TF_FUSE_CC_TESTING_REQUESTS_FUZZ_TASK_H_
#define TF_FUSE_CC_TESTING_REQUESTS_FUZZ_TASK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "testing/loopback_tasks.h"

namespace tf_fuse {
namespace testing {

// Of the library's errors; see failed_slots.cc.
inline constexpr char kFailedSlotsPayload[] =
    "type.googleapis.com/tf_fuse.v1.FailedSlots";
inline constexpr char kPostponedPayload[] =
    "type.googleapis.com/tf_fuse.v1.Postponed";

// Ends the process, which the fuzzer takes for a finding.
[[noreturn]] void Die(const std::string& what, const std::string& detail);

// Checks that MeasureRequest() promises what ParseFromString() then keeps.
void CheckMeasure(const std::string& serialized);

// Two tasks that live as long as the process; limits are set by the first call.
struct Tasks {
  Tasks();
  static Tasks* Get();

  Task sender;
  Loopback wire;
  Task receiver;
  int64_t next_id = 1;  // Of steps and requests.

  // What a task does on other threads is done in between, on this one.
  void Schedule(std::function<void()> closure);
  void RunScheduled();

 private:
  absl::Mutex mu_;
  std::deque<std::function<void()>> scheduled_ ABSL_GUARDED_BY(mu_);
};

// A request that was sent, until its answer is looked at.
struct Asked {
  tensorflow::RecvTensorRequest request;
  std::shared_ptr<const ParsedKeys> keys;  // Null: not a request that we serve.
  bool by_parts = false;
  tensorflow::CallOptions options;
  Answer answer;
  // Guarded by the scenario's lock.
  int answers = 0;
  absl::Status status;
};

// What happens to an answer on its way to the receiver.
struct Change {
  uint64_t at = 0;
  uint64_t value = 0;
  uint8_t bytes = 0;                  // How many to overwrite; 0: none.
  int64_t resize = 0;                 // By how much.
  int code = 0;                       // Not 0: an error instead,
  std::string payload_type, payload;  // with this.
};

// One input: some steps, and what is done in them.
class Scenario {
 public:
  Scenario();

  int64_t step(uint64_t which) const {
    return first_step_ + static_cast<int64_t>(which % 3);
  }
  int64_t NewRequestId() { return tasks_->next_id++; }
  // The request with its device and incarnation set to those of the task.
  void Adopt(tensorflow::RecvTensorRequest* request) const;
  // A whole request around a FuseRecvTensorRequest.
  tensorflow::RecvTensorRequest Envelope(int64_t step, const std::string& value,
                                         bool by_parts = false);
  // Of a request by parts for the rests of others.
  std::string RestsOf(const std::vector<int64_t>& request_ids) const;

  void Begin(int64_t step);
  // Sends the tensors of a request's keys; every `stride`th.
  void Send(int64_t step, const ParsedKeys& keys, size_t stride);
  // The same, to our own receiver.
  void SendNames(int64_t step, const std::vector<std::string>& names,
                 const tensorflow::FrameAndIter& frame_iter);
  // Asks, as a peer would.
  std::shared_ptr<Asked> Ask(const tensorflow::RecvTensorRequest& request);
  // Gives up, unless it has been answered.
  void Cancel(const std::shared_ptr<Asked>& asked);
  void Abort(int64_t step);
  void AbortReceiver(int64_t step, const absl::Status& status);
  void End(int64_t step);
  // As if the request had waited for very long.
  void Tick(int64_t request_id);
  void Profile(bool on);
  // Receives by our own receiver; `changes` are made to the answers in turn.
  void Receive(int64_t step, const std::vector<std::string>& names,
               const tensorflow::FrameAndIter& frame_iter,
               std::vector<bool> copy_out, std::deque<Change> changes);
  // The same by parts: each tensor by itself. Unless `repeat`, skips names that
  // the step has received already, as no step of a graph receives one twice.
  void ReceiveParts(int64_t step, const std::vector<std::string>& names,
                    const tensorflow::FrameAndIter& frame_iter,
                    const std::vector<bool>& copy_out,
                    std::deque<Change> changes, bool repeat);
  // Cancels those by parts that the step has begun.
  void CancelParts(int64_t step);

  // Ends all steps, waits for all answers, checks them and that nothing is
  // left.
  void Finish();

  const std::vector<std::shared_ptr<Asked>>& asked() const { return asked_; }

 private:
  struct Received {
    std::shared_ptr<const FusedKeys> keys;
    bool changed = false;
    int answers = 0;
    absl::Status status;
    std::vector<Slot> slots;
  };
  // A tensor that was asked for by parts. It ends once: sent, or failed.
  struct Part {
    std::string name;
    bool ended = false;
  };
  using Parts = std::vector<std::shared_ptr<Part>>;

  std::shared_ptr<Received> Expect(const std::vector<std::string>& names,
                                   std::vector<bool> copy_out, bool changed);
  // Puts them before the next answers; whether any may change one from now on.
  bool TakeChanges(std::deque<Change> changes);
  FusedDone DoneOf(const std::shared_ptr<Received>& received);
  void CheckAnswer(Asked* asked);
  void CheckFrame(Asked* asked, tensorflow::Tensor frame);
  // The answers are looked at in the order in which they came.
  void CheckPart(Asked* asked, tensorflow::Tensor frame);
  void CheckFailedPart(const Asked& asked);
  Parts PartsOf(const Asked& asked);
  void EndParts(const Asked& asked, const Parts& parts,
                const std::vector<size_t>& ended);
  void CheckReceived(const Received& received);
  // Ends all steps; false if some request is still without an answer.
  bool EndAll();
  bool AllAnswered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Tasks* const tasks_;
  const int64_t first_step_;
  std::set<int64_t> steps_;
  bool profiling_ = false;
  std::vector<std::shared_ptr<Asked>> asked_;
  std::vector<std::shared_ptr<Received>> received_;
  // By step: frame and name of what was received by parts.
  std::map<int64_t, std::set<std::pair<uint64_t, std::string>>> names_;
  std::map<int64_t, std::unique_ptr<tensorflow::CancellationManager>>
      cancellations_;
  // They outlive the receives.
  std::vector<std::unique_ptr<tensorflow::CancellationManager>> cancelled_;
  // What answers have left, by step and request.
  std::map<std::pair<int64_t, int64_t>, Parts> left_;
  bool any_change_ = false;
  absl::Mutex mu_;
  // In the order of their answers.
  std::vector<Asked*> answered_ ABSL_GUARDED_BY(mu_);
  std::deque<Change> changes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace testing
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TESTING_REQUESTS_FUZZ_TASK_H_
