// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// FuseWorker: calls by data channels.

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/metrics.h"
#include "server/fuse_worker.h"
#include "server/tensor_answer.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/rendezvous_mgr_interface.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "transport/step/step_rendezvous.h"

namespace tf_fuse {

using tensorflow::CallOptions;
using tensorflow::Tensor;

void FuseWorker::Handle(v1::CallMethod method, const std::string& bytes,
                        CallOptions* options, AnswerDone done) {
  if (method == v1::CALL_METHOD_RUN_COMPONENT_FUNCTION) {
    return component_functions_.Run(bytes, options, std::move(done));
  }
  auto request = std::make_shared<tensorflow::RecvTensorRequest>();
  absl::Status status;
  if (method != v1::CALL_METHOD_FRAME &&
      method != v1::CALL_METHOD_RECV_TENSOR) {
    status = absl::InvalidArgumentError(
        absl::StrCat("data channel: a call of the unknown method ", method));
  } else if (!request->ParseFromString(bytes)) {
    status = absl::InvalidArgumentError(
        absl::StrCat("data channel: a RecvTensorRequest of ", bytes.size(),
                     " bytes does not parse"));
  } else if (IsFused(*request) != (method == v1::CALL_METHOD_FRAME)) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "data channel: a call of the method ", v1::CallMethod_Name(method),
        " has a RecvTensorRequest of the other kind"));
  }
  if (!status.ok()) {
    Metrics::Get()->rejected_requests.fetch_add(1);
    return done(status, {});
  }
  if (method == v1::CALL_METHOD_FRAME) {
    HandleFrame(std::move(request), options, std::move(done));
  } else {
    HandleRecvTensor(*request, std::move(done));
  }
}

void FuseWorker::HandleFrame(
    std::shared_ptr<tensorflow::RecvTensorRequest> request,
    CallOptions* options, AnswerDone done) {
  const auto answer = std::make_shared<AnswerBytes>();
  auto respond = [answer](const Tensor& frame) {
    const auto owner = std::make_shared<const Tensor>(frame);
    const auto bytes = owner->tensor_data();
    answer->pieces = {absl::string_view(bytes.data(), bytes.size())};
    answer->owner = owner;
    return absl::OkStatus();
  };
  AnswerFused(
      options, *request, std::move(respond),
      [answer, request, done = std::move(done)](const absl::Status& status) {
        done(status, std::exchange(*answer, AnswerBytes()));
      });
}

// As TensorFlow's, of a tensor in the memory of the host. (Like there, a
// cancellation ends nothing here: the step does.)
void FuseWorker::HandleRecvTensor(const tensorflow::RecvTensorRequest& request,
                                  AnswerDone done) {
  tensorflow::Rendezvous::ParsedKey key;
  tensorflow::Device* device = nullptr;
  absl::Status status = recent_request_ids_.TrackUnique(
      request.request_id(), "RecvTensor (tf_fuse)", request);
  if (status.ok()) {
    status = tensorflow::Rendezvous::ParseKey(request.rendezvous_key(), &key);
  }
  if (status.ok()) status = PrepareRecvTensor(key, &device);
  if (status.ok() && device->device_type() != tensorflow::DEVICE_CPU) {
    status = absl::UnimplementedError(absl::StrCat(
        "tensors are sent by data channels from the memory of CPUs, not from ",
        device->name()));
  }
  if (!status.ok()) return done(status, {});
  auto found = env_->rendezvous_mgr->Find(request.step_id());
  auto* const step = tensorflow::down_cast<StepRendezvous*>(found.release());
  step->RecvLocalAsync(
      key, [step, done = std::move(done)](const absl::Status& status,
                                          const tensorflow::Rendezvous::Args&,
                                          const tensorflow::Rendezvous::Args&,
                                          const Tensor& tensor, bool is_dead) {
        step->Unref();
        if (!status.ok()) return done(status, {});
        auto answer = AnswerWith(tensor, is_dead);
        if (!answer.ok()) return done(answer.status(), {});
        done(status, *std::move(answer));
      });
}

}  // namespace tf_fuse
