// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The worker service of the protocol "grpc+fuse": answers RecvTensor requests
// that ask for many tensors (RFC 20200411-fuse_recv,
// "FuseRecvTensorHandlerRaw").

#ifndef TF_FUSE_CC_TRANSPORT_FUSE_WORKER_H_
#define TF_FUSE_CC_TRANSPORT_FUSE_WORKER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"
#include "transport/pending_frame.h"
#include "transport/request_budget.h"
#include "transport/request_cache.h"

namespace tf_fuse {

class FuseWorker : public tensorflow::GrpcWorker {
 public:
  FuseWorker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config);

  // Fused requests are answered here, all others by TensorFlow.
  void GrpcRecvTensorAsync(tensorflow::CallOptions* options,
                           const tensorflow::RecvTensorRequest* request,
                           ::grpc::ByteBuffer* response,
                           tensorflow::StatusCallback done) override;

 private:
  // Fills in the keys that `request` asks for, and takes what it will cost from
  // the budget. Errors: InvalidArgument, FailedPrecondition, ResourceExhausted.
  absl::Status Accept(const tensorflow::RecvTensorRequest& request,
                      bool by_parts, std::shared_ptr<const ParsedKeys>* keys,
                      RequestBudget::Ticket* ticket);
  // Whether a request with keys can be served here. Errors: Aborted for one
  // that was received before, and those of TensorFlow for its device.
  absl::Status Check(const tensorflow::RecvTensorRequest& request,
                     bool by_parts, const ParsedKeys& keys);

  RequestCache request_cache_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_FUSE_WORKER_H_
