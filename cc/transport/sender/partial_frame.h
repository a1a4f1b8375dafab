// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The sender's side of a request by parts, from its arrival to its answer.

#ifndef TF_FUSE_CC_TRANSPORT_SENDER_PARTIAL_FRAME_H_
#define TF_FUSE_CC_TRANSPORT_SENDER_PARTIAL_FRAME_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "transport/sender/partial_sends.h"
#include "transport/sender/pending_frame.h"

namespace tf_fuse {

// Answers as soon as one of its tensors is there, with all that are.
class PartialFrame : public PendingFrame, public PartialSends::Asker {
 public:
  // The request id also names what the answer leaves.
  using PendingFrame::PendingFrame;
  ~PartialFrame() override;

  void Wake() override;

  // While it waits, that is all of them.
  v1::StallAnswer Missing() override;

  bool measures_waits() const override { return start_ns_ != 0; }

 protected:
  void Collect(const Self& self, StepRendezvous* step) override;
  absl::Status MakeFrame(StepRendezvous* step, tensorflow::Tensor* frame,
                         size_t* tensors) override;
  const tensorflow::Rendezvous::ParsedKey& KeyOfSlot(size_t i) const override;
  std::vector<std::string> Names() override;
  void DropCollected() override;
  std::shared_ptr<const ParsedKeys> KeysOfAnswer(absl::StatusCode code,
                                                 size_t* names_bytes) override;

 private:
  absl::Status PackPart(StepRendezvous* step, tensorflow::Tensor* frame);

  // Set by Collect().
  std::shared_ptr<PartialSends::Asked> asked_;
  // Of MakeFrame().
  PartialSends::Part part_;

  absl::Mutex parts_mu_;
  // Set by Collect(), together with tensors_.
  std::shared_ptr<PartialSends> sends_ ABSL_GUARDED_BY(parts_mu_);
  PartialSends::Tensors tensors_ ABSL_GUARDED_BY(parts_mu_);
  absl::Status open_status_ ABSL_GUARDED_BY(parts_mu_);
  bool dropped_ ABSL_GUARDED_BY(parts_mu_) = false;
  bool collected_ ABSL_GUARDED_BY(parts_mu_) = false;
  bool woken_ ABSL_GUARDED_BY(parts_mu_) = false;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_SENDER_PARTIAL_FRAME_H_
