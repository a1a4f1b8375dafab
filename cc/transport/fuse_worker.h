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
  RequestCache request_cache_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_FUSE_WORKER_H_
