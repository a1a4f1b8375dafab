// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// An answer that comes by a data channel: what the sender says, and how the
// receiver takes it.

#ifndef TF_FUSE_CC_TRANSPORT_MESSAGE_PARCEL_CALL_H_
#define TF_FUSE_CC_TRANSPORT_MESSAGE_PARCEL_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "channel/chunk_client.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

// The answer that names a parcel, in place of a frame.
tensorflow::Tensor ParcelAnswer(const v1::Parcel& parcel);
// Whether `answer` names a parcel, and does not hold a frame. `parcel` is empty
// if what it names is malformed.
bool ReadParcelAnswer(const tensorflow::Tensor& answer, v1::Parcel* parcel);

// Takes a parcel from its sender. Like an RPC it is listed in its step, whose
// abort and cancellation reach it.
class ParcelCall : public tensorflow::BaseRecvTensorCall {
 public:
  ParcelCall(std::shared_ptr<ChunkClient> client, const v1::Parcel& parcel)
      : client_(std::move(client)), parcel_(parcel) {}

  // Errors: DataLoss for a parcel that is empty, or of more than `max_bytes`;
  // ResourceExhausted.
  absl::Status Init(uint64_t max_bytes);
  // Calls `recv_done` on another thread.
  void Start(std::function<void()> recv_done) override;
  void StartAbort(const absl::Status& status) override;
  absl::Status status() const override;

  const tensorflow::Tensor& tensor() const { return tensor_; }

 private:
  const std::shared_ptr<ChunkClient> client_;
  const v1::Parcel parcel_;
  tensorflow::Tensor tensor_;

  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<ChunkCall> chunk_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_MESSAGE_PARCEL_CALL_H_
