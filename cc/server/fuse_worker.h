// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Declares the worker service of the protocol "grpc+fuse", which answers
// RecvTensor requests that ask for many tensors (RFC 20200411-fuse_recv,
// "FuseRecvTensorHandlerRaw").

#ifndef TF_FUSE_CC_SERVER_FUSE_WORKER_H_
#define TF_FUSE_CC_SERVER_FUSE_WORKER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "channel/calls/call_handler.h"
#include "server/component_functions.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"
#include "transport/sender/parsed_requests.h"
#include "transport/sender/pending_frame.h"
#include "transport/sender/request_budget.h"

namespace tf_fuse {

class FuseWorker : public tensorflow::GrpcWorker, public CallHandler {
 public:
  FuseWorker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config);
  ~FuseWorker() override;

  // Fused requests are answered here, all others by TensorFlow.
  void GrpcRecvTensorAsync(tensorflow::CallOptions* options,
                           const tensorflow::RecvTensorRequest* request,
                           ::grpc::ByteBuffer* response,
                           tensorflow::StatusCallback done) override;

  // Answers calls that came by a data channel.
  void Handle(v1::CallMethod method, const std::string& request,
              tensorflow::CallOptions* options, AnswerDone done) override;

  // What runs the parts of functions that other tasks have here, for calls by
  // data channels. Set before the server starts.
  void set_component_functions(ComponentFunctions functions) {
    component_functions_ = std::move(functions);
  }

  // As TensorFlow's. A group that is not complete when this task's collectives
  // begin anew, and that this task was not in, is completed by those that take
  // their place.
  void CompleteGroupAsync(tensorflow::CallOptions* options,
                          const tensorflow::CompleteGroupRequest* request,
                          tensorflow::CompleteGroupResponse* response,
                          tensorflow::StatusCallback done) override;
  void CompleteInstanceAsync(tensorflow::CallOptions* options,
                             const tensorflow::CompleteInstanceRequest* request,
                             tensorflow::CompleteInstanceResponse* response,
                             tensorflow::StatusCallback done) override;
  // TensorFlow's, once the step runs here: it keeps an executor for each step
  // that it is asked for.
  void RecvBufAsync(tensorflow::CallOptions* options,
                    const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response,
                    tensorflow::StatusCallback done) override;

 private:
  static bool IsFused(const tensorflow::RecvTensorRequest& request);
  // RecvTensor that came by a data channel.
  void HandleFrame(std::shared_ptr<tensorflow::RecvTensorRequest> request,
                   tensorflow::CallOptions* options, AnswerDone done);
  void HandleRecvTensor(const tensorflow::RecvTensorRequest& request,
                        AnswerDone done);
  // Answers a fused request: puts the frame where `respond` says, then calls
  // `done`.
  void AnswerFused(tensorflow::CallOptions* options,
                   const tensorflow::RecvTensorRequest& request,
                   FrameResponse respond, tensorflow::StatusCallback done);
  // Answers a request for a chunk of a collective, within the limits of all
  // requests.
  void ServeChunkRequest(tensorflow::CallOptions* options,
                         const tensorflow::RecvTensorRequest& request,
                         ::grpc::ByteBuffer* response,
                         tensorflow::StatusCallback done);
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
  const uint64_t call_token_;
  ComponentFunctions component_functions_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_SERVER_FUSE_WORKER_H_
