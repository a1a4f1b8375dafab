// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/fuse_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "transport/fuse_status.h"
#include "transport/metrics.h"
#include "transport/tensor_frame.h"

namespace tf_fuse {

using tensorflow::CallOptions;
using tensorflow::Tensor;

FuseWorker::FuseWorker(tensorflow::WorkerEnv* env,
                       const tensorflow::ConfigProto& config)
    : GrpcWorker(env, config), step_watch_(std::make_shared<StepWatch>()) {}

void FuseWorker::GrpcRecvTensorAsync(
    CallOptions* options, const tensorflow::RecvTensorRequest* request,
    ::grpc::ByteBuffer* response, tensorflow::StatusCallback done) {
  if (!request->has_transport_options() ||
      request->transport_options().type_url() != kFusedRequestTypeUrl) {
    GrpcWorker::GrpcRecvTensorAsync(options, request, response,
                                    std::move(done));
    return;
  }
  Metrics* metrics = Metrics::Get();
  auto keys = request_cache_.Get(request->transport_options().value());
  absl::Status status = keys.status();
  if (status.ok() && (*keys)->keys.empty()) {
    metrics->served_probes.fetch_add(1);
    Tensor frame;
    status = PackFrame({}, &frame);
    if (status.ok()) status = EncodeFrameResponse(frame, response);
    done(status);
    return;
  }
  if (status.ok()) {
    // A request that the network delivered twice must not take the tensors of
    // the next one.
    status = recent_request_ids_.TrackUnique(
        request->request_id(), "FuseRecvTensor (tf_fuse)", *request);
  }
  if (status.ok()) {
    // All keys have the same source: one look is enough.
    tensorflow::Device* device = nullptr;
    status = PrepareRecvTensor((*keys)->keys[0], &device);
    if (status.ok() &&
        device->tensorflow_accelerator_device_info() != nullptr) {
      status = absl::UnimplementedError(
          absl::StrCat("fused receives are served from host memory, not from ",
                       device->name()));
    }
  }
  if (!status.ok()) {
    metrics->rejected_requests.fetch_add(1);
    done(status);
    return;
  }
  auto pending = std::make_shared<PendingFrame>(
      env_, options, request->step_id(), *std::move(keys), response,
      std::move(done));
  if (PendingFrame::Start(pending)) step_watch_->Add(pending);
}

}  // namespace tf_fuse
