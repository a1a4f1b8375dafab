// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The sender's side of one fused receive: a request from its arrival to its
// answer.

#ifndef TF_FUSE_CC_TRANSPORT_SENDER_PENDING_FRAME_H_
#define TF_FUSE_CC_TRANSPORT_SENDER_PENDING_FRAME_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/metrics.h"
#include "grpcpp/support/byte_buffer.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/platform/status.h"
#include "transport/message/receive_keys.h"
#include "transport/message/tensor_frame.h"
#include "transport/message/unsent_frames.h"
#include "transport/sender/request_budget.h"
#include "transport/step/step_rendezvous.h"
#include "transport/watch/watch.h"

namespace tf_fuse {

class GatheredFrame;
class ConsumerConnection;

// Puts a frame into the response of a RecvTensor RPC.
absl::Status EncodeFrameResponse(const tensorflow::Tensor& frame,
                                 ::grpc::ByteBuffer* response);
// Takes the frame that answers a request; called once at most.
using FrameResponse =
    std::function<absl::Status(const tensorflow::Tensor& frame)>;

// Waits for the step, starts one local receive per send, counts down, packs,
// and answers once. Every local receive holds a reference, so it outlives
// whichever callback comes last.
class PendingFrame : public Waiting,
                     public std::enable_shared_from_this<PendingFrame> {
 public:
  // `options` and `respond` belong to the RPC; they are not used any more once
  // `done` was called. `abort_step` is called when the receiver gives up,
  // on another thread than the one that says so.
  PendingFrame(int64_t request_id, tensorflow::WorkerEnv* env,
               tensorflow::CallOptions* options, int64_t step_id,
               std::shared_ptr<const ParsedKeys> keys,
               RequestBudget::Ticket ticket, FrameResponse respond,
               tensorflow::StatusCallback done,
               std::function<void()> abort_step);

  static void Start(const std::shared_ptr<PendingFrame>& self);

  // gRPC loses a cancellation that comes before TensorFlow's handler runs; such
  // a request would else be kept for ever. Postpones one whose step does not
  // begin: a receiver that is still there asks again, so that a slow step loses
  // nothing. Of a step that has begun, the receiver is asked whether it waits.
  // Reports a request that waits for very long.
  void OnTick(uint64_t waited_micros) override;
  bool Describe(v1::WaitingReceive* out) override;
  // The answer to a receiver that asks.
  virtual v1::StallAnswer Missing();

 protected:
  using Self = std::shared_ptr<PendingFrame>;

  // Starts what the answer waits for, once the step has begun.
  virtual void Collect(const Self& self, StepRendezvous* step);
  // Makes the answer of what was collected. `tensors` is how many are in it.
  virtual absl::Status MakeFrame(StepRendezvous* step,
                                 tensorflow::Tensor* frame, size_t* tensors);
  // The key of slots_[i].
  virtual const tensorflow::Rendezvous::ParsedKey& KeyOfSlot(size_t i) const;
  // Of all tensors that were asked for.
  virtual std::vector<std::string> Names();
  // Drops what was collected; the receiver has gone.
  virtual void DropCollected() {}
  // What the event in a profile names. `names_bytes`: of names that no other
  // event shares.
  virtual std::shared_ptr<const ParsedKeys> KeysOfAnswer(absl::StatusCode code,
                                                         size_t* names_bytes);

  // Makes the frame of slots_, as MakeFrame() is to.
  absl::Status Pack(FrameReservation* reservation, tensorflow::Tensor* frame);
  // Answers, unless that was done.
  void Finish();
  // Marks the slots that are not packed.
  void ChooseBeside(FrameReservation* reservation);
  // Puts those back. Errors: as Send().
  absl::Status SendBeside(StepRendezvous* step);
  // The slot that `report_waits` asks for.
  Slot WaitsSlot();
  void SetWaits(std::vector<int64_t> waits_micros);
  // Why the step did not begin, or what failed.
  absl::Status status();

  // What both sides call the request by.
  const int64_t request_id_;
  tensorflow::WorkerEnv* const env_;
  const std::shared_ptr<const ParsedKeys> keys_;
  RequestBudget::Ticket ticket_;
  const bool traced_;
  // 0 unless waits are measured.
  const int64_t start_ns_;
  const Stopwatch stopwatch_;
  // Made when the step has begun.
  std::vector<Slot> slots_;
  std::vector<tensorflow::Rendezvous::Args> send_args_;

 private:
  // Asks the receiver to send the request again, if its step still has not
  // begun.
  static void Postpone(const std::shared_ptr<PendingFrame>& self);
  void ReportStall(uint64_t waited_micros);
  // Asks the receiver whether it still waits; drops the request if not.
  void AskReceiver(uint64_t waited_micros);
  // Adds its event to the profile, if one was being made when it arrived.
  void Trace(absl::StatusCode code, int64_t bytes);
  // The step has begun, or will not.
  static void OnStep(const std::shared_ptr<PendingFrame>& self,
                     const absl::Status& status);
  static void OnCancel(const std::shared_ptr<PendingFrame>& self);
  // Takes the answer from the local receives, which are not waited for any
  // more: false if it was given already. What they bring is dropped.
  bool StopCollecting();

  // Brings what may be packed from the memory of a device into that of the
  // host, then finishes. A single receive copies no more.
  void CopyToHost();
  void CopySlot(size_t index, std::function<void()> done);
  bool IsOnDevice(size_t index) const;

  // Tensor `begin` came, or up to `end` by one joint send.
  void OnSend(size_t begin, size_t end, absl::Status status,
              const tensorflow::Rendezvous::Args& args,
              const tensorflow::Tensor& sent, bool is_dead);
  // Puts the frame into the response, or a parcel at the receiver's channel.
  absl::Status Respond(StepRendezvous* step, const tensorflow::Tensor& frame);
  // The number of that parcel; 0 if there is no channel (any more).
  uint64_t PutParcel(StepRendezvous* step, const tensorflow::Tensor& frame);
  // True for exactly one caller, which then answers.
  bool ClaimAnswer();

  tensorflow::CallOptions* const options_;
  const int64_t step_id_;
  const FrameResponse respond_;
  tensorflow::StatusCallback done_;
  const std::function<void()> abort_step_;
  // Of Finish(): in place of a frame, if it will be a parcel.
  std::shared_ptr<ConsumerConnection> channel_;
  std::shared_ptr<const GatheredFrame> gathered_;
  const bool from_device_;  // All keys have the same source.
  // Of a source that is a device: what was sent, which is what goes beside; and
  // by what it is copied, which the rendezvous holds only while it is asked.
  std::vector<tensorflow::Tensor> on_device_;
  std::vector<tsl::core::RefCountPtr<tensorflow::DeviceContext>> contexts_;
  std::atomic<size_t> remaining_;  // Sends.

  absl::Mutex mu_;
  // Held from the request until its answer.
  tsl::core::RefCountPtr<StepRendezvous> step_ ABSL_GUARDED_BY(mu_);
  bool step_has_begun_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::vector<size_t> failed_ ABSL_GUARDED_BY(mu_);
  // Once true, options, response and done belong to the RPC layer again.
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  bool collecting_ ABSL_GUARDED_BY(mu_) = true;
  std::vector<bool> arrived_ ABSL_GUARDED_BY(mu_);
  // Microseconds per slot; empty unless a profile, here or there, wants them.
  std::vector<int64_t> waits_micros_ ABSL_GUARDED_BY(mu_);
  bool reported_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t asked_at_micros_ ABSL_GUARDED_BY(mu_) = 0;  // Of the wait.
  // Last: nobody looks at what is half destroyed.
  Watch::Place place_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_SENDER_PENDING_FRAME_H_
