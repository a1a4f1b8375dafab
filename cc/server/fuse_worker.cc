// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "server/fuse_worker.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/executors.h"
#include "base/limits.h"
#include "base/metrics.h"
#include "channel/peer_card.h"
#include "collectives/remote_access/grpc_chunk.h"
#include "collectives/runtime/collective_manager.h"
#include "collectives/runtime/group_resolver.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "transport/message/failed_slots.h"
#include "transport/message/tensor_frame.h"
#include "transport/peers/introspection.h"
#include "transport/sender/partial_frame.h"
#include "transport/watch/watch.h"

namespace tf_fuse {

using tensorflow::CallOptions;
using tensorflow::Tensor;

namespace {

// As of a data channel's messages.
constexpr uint64_t kMaxChunkRequestBytes = 64 << 10;

// Takes budget for a request whose message has this many bytes.
absl::StatusOr<RequestBudget::Ticket> Admit(int64_t step_id,
                                            uint64_t message_bytes) {
  RequestSize size;
  size.message_bytes = message_bytes;
  return RequestBudget::Get()->Admit(step_id, RequestCost(size));
}

// Tells a receiver which tensors its request still waits for.
v1::StallAnswer AnswerStallQuery(int64_t request_id) {
  const std::shared_ptr<Waiting> waiting = Watch::Get()->Find(request_id);
  auto* pending = dynamic_cast<PendingFrame*>(waiting.get());
  return pending == nullptr ? v1::StallAnswer() : pending->Missing();
}

std::string BytesOfAnswer(const ParsedKeys& keys,
                          const tensorflow::WorkerEnv& env,
                          uint64_t call_token) {
  if (keys.stalled_request_id != 0) {
    return AnswerStallQuery(keys.stalled_request_id).SerializeAsString();
  }
  if (keys.awaited_request_id != 0) {
    v1::AwaitedAnswer answer;
    answer.set_given_up(!Watch::Get()->Awaits(keys.awaited_request_id));
    return answer.SerializeAsString();
  }
  if (keys.question == v1::QUESTION_GROUPS) {
    return WaitingGroupsOf(env.collective_executor_mgr.get())
        .SerializeAsString();
  }
  return AnswerQuestion(keys.question, call_token);
}

// Errors: InvalidArgument for a request with much beside its `message`.
absl::Status CheckBytesAround(const tensorflow::RecvTensorRequest& request,
                              absl::string_view message) {
  const uint64_t around =
      request.ByteSizeLong() - request.transport_options().value().size();
  if (around <= kMaxOtherFieldsBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("RecvTensorRequest: ", around, " bytes around the ", message,
                   ", at most ", kMaxOtherFieldsBytes, " are read"));
}

// A frame with one vector of these bytes. Errors: ResourceExhausted where
// receivers do not take the answers that they asked for.
absl::Status EncodeBytesResponse(const std::string& bytes,
                                 const FrameResponse& respond) {
  Slot slot;
  slot.tensor =
      Tensor(tensorflow::DT_UINT8,
             tensorflow::TensorShape({static_cast<int64_t>(bytes.size())}));
  if (!slot.tensor.IsInitialized()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "out of memory for an answer of ", bytes.size(), " bytes"));
  }
  if (!bytes.empty()) {
    std::memcpy(slot.tensor.data(), bytes.data(), bytes.size());
  }
  FrameReservation reservation;
  // (A few bytes: no limit keeps a task from being looked at.)
  constexpr size_t kSmall = 4096;
  if (bytes.size() > kSmall &&
      !reservation.Take(bytes.size() + FrameOverheadBytes({slot}))) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "an answer of ", bytes.size(), " bytes: the limit of unsent bytes is ",
        MaxUnsentFrameBytes(), "; ", kMaxUnsentFrameBytesVariable,
        " on this task raises it"));
  }
  Tensor frame;
  const absl::Status packed = PackFrame({slot}, &reservation, &frame);
  return packed.ok() ? respond(frame) : packed;
}

}  // namespace

FuseWorker::FuseWorker(tensorflow::WorkerEnv* env,
                       const tensorflow::ConfigProto& config)
    : GrpcWorker(env, config),
      // A response that is kept is let go by another RPC, which gRPC's client
      // makes.
      call_token_(config.rpc_options().cache_rpc_response() ? 0
                                                            : RandomNumber()) {
  if (call_token_ != 0) CallHandler::Register(call_token_, this);
}

FuseWorker::~FuseWorker() { CallHandler::Unregister(call_token_); }

bool FuseWorker::IsFused(const tensorflow::RecvTensorRequest& request) {
  const std::string& type_url = request.transport_options().type_url();
  return type_url == kFusedRequestTypeUrl || type_url == kPartialRequestTypeUrl;
}

void FuseWorker::GrpcRecvTensorAsync(
    CallOptions* options, const tensorflow::RecvTensorRequest* request,
    ::grpc::ByteBuffer* response, tensorflow::StatusCallback done) {
  if (request->transport_options().type_url() == kChunkRequestTypeUrl) {
    return ServeChunkRequest(options, *request, response, std::move(done));
  }
  if (!IsFused(*request)) {
    GrpcWorker::GrpcRecvTensorAsync(options, request, response,
                                    std::move(done));
    return;
  }
  auto respond = [response](const Tensor& frame) {
    return EncodeFrameResponse(frame, response);
  };
  AnswerFused(options, *request, std::move(respond), std::move(done));
}

void FuseWorker::AnswerFused(CallOptions* options,
                             const tensorflow::RecvTensorRequest& request,
                             FrameResponse respond,
                             tensorflow::StatusCallback done) {
  const bool by_parts =
      request.transport_options().type_url() == kPartialRequestTypeUrl;
  Metrics* metrics = Metrics::Get();
  std::shared_ptr<const ParsedKeys> keys;
  RequestBudget::Ticket ticket;
  absl::Status status = Accept(request, by_parts, &keys, &ticket);
  if (status.ok() && keys->is_question()) {
    status =
        EncodeBytesResponse(BytesOfAnswer(*keys, *env_, call_token_), respond);
    if (!status.ok()) metrics->rejected_requests.fetch_add(1);
    done(status);
    return;
  }
  if (status.ok() && keys->keys.empty() && !by_parts) {
    metrics->served_probes.fetch_add(1);
    FrameReservation reservation;
    Tensor frame;
    status = PackFrame({}, &reservation, &frame);
    if (status.ok()) status = respond(frame);
    done(status);
    return;
  }
  if (status.ok()) status = Check(request, by_parts, *keys);
  if (!status.ok()) {
    metrics->rejected_requests.fetch_add(1);
    done(status);
    return;
  }
  auto abort_step = [this, step_id = request.step_id()] { AbortStep(step_id); };
  std::shared_ptr<PendingFrame> pending;
  if (by_parts) {
    pending = std::make_shared<PartialFrame>(
        request.request_id(), env_, options, request.step_id(), std::move(keys),
        std::move(ticket), std::move(respond), std::move(done),
        std::move(abort_step));
  } else {
    pending = std::make_shared<PendingFrame>(
        request.request_id(), env_, options, request.step_id(), std::move(keys),
        std::move(ticket), std::move(respond), std::move(done),
        std::move(abort_step));
  }
  PendingFrame::Start(pending);
}

void FuseWorker::ServeChunkRequest(CallOptions* options,
                                   const tensorflow::RecvTensorRequest& request,
                                   ::grpc::ByteBuffer* response,
                                   tensorflow::StatusCallback done) {
  const uint64_t message_bytes = request.transport_options().value().size();
  absl::Status status = CheckBytesAround(request, "GrpcChunkRequest");
  if (status.ok() && message_bytes > kMaxChunkRequestBytes) {
    status = absl::InvalidArgumentError(
        absl::StrCat("RecvTensorRequest: a GrpcChunkRequest of ", message_bytes,
                     " bytes, at most ", kMaxChunkRequestBytes, " are read"));
  }
  RequestBudget::Ticket ticket;
  if (status.ok()) {
    auto admitted = Admit(request.step_id(), message_bytes);
    status = admitted.status();
    if (admitted.ok()) ticket = *std::move(admitted);
  }
  const std::shared_ptr<StepChunks> source =
      SourceOf(env_->collective_executor_mgr.get());
  if (status.ok() && source == nullptr) {
    status = absl::UnavailableError("the task has ended");
  }
  if (!status.ok()) {
    Metrics::Get()->rejected_requests.fetch_add(1);
    done(status);
    return;
  }
  ServeChunk(source, std::move(ticket), options, request, response,
             std::move(done));
}

void FuseWorker::CompleteGroupAsync(
    CallOptions* options, const tensorflow::CompleteGroupRequest* request,
    tensorflow::CompleteGroupResponse* response,
    tensorflow::StatusCallback done) {
  const auto asked = UnderWayIn(env_->collective_executor_mgr.get());
  GrpcWorker::CompleteGroupAsync(
      options, request, response,
      [=, done = std::move(done)](const absl::Status& status) {
        if (status.ok() || asked->retired().ok() ||
            asked->HasGroup(request->group_key())) {
          return done(status);
        }
        response->Clear();
        CompleteGroupAsync(options, request, response, done);
      });
}

void FuseWorker::CompleteInstanceAsync(
    CallOptions* options, const tensorflow::CompleteInstanceRequest* request,
    tensorflow::CompleteInstanceResponse* response,
    tensorflow::StatusCallback done) {
  const auto asked = UnderWayIn(env_->collective_executor_mgr.get());
  const auto joins = JoinsIn(env_->collective_executor_mgr.get());
  GrpcWorker::CompleteInstanceAsync(
      options, request, response,
      [=, done = std::move(done)](const absl::Status& status) {
        if (status.ok() || asked->HasGroup(request->group_key())) {
          return done(status);
        }
        auto go_on = [=] {
          if (asked->retired().ok()) return done(status);
          response->Clear();
          CompleteInstanceAsync(options, request, response, done);
        };
        const auto is_current = [&asked] { return asked->retired().ok(); };
        auto admitted = Admit(request->step_id(), request->ByteSizeLong());
        if (joins == nullptr || !admitted.ok()) return go_on();
        auto ticket =
            std::make_shared<RequestBudget::Ticket>(*std::move(admitted));
        auto kept = [ticket, go_on] {
          ticket->Release();
          go_on();
        };
        if (!joins->KeepError(*request, is_current, kept)) kept();
      });
}

void FuseWorker::RecvBufAsync(CallOptions* options,
                              const tensorflow::RecvBufRequest* request,
                              tensorflow::RecvBufResponse* response,
                              tensorflow::StatusCallback done) {
  const std::shared_ptr<StepChunks> source =
      SourceOf(env_->collective_executor_mgr.get());
  auto admitted = Admit(request->step_id(), request->ByteSizeLong());
  absl::Status status = admitted.status();
  if (status.ok() && source == nullptr) {
    status = absl::UnavailableError("the task has ended");
  }
  if (!status.ok()) {
    Metrics::Get()->rejected_requests.fetch_add(1);
    return done(status);
  }
  auto ticket = std::make_shared<RequestBudget::Ticket>(*std::move(admitted));
  auto cancellation = std::make_shared<tensorflow::CancellationManager>();
  // (On another thread, as in ServeChunk().)
  options->SetCancelCallback([cancellation] {
    ScheduleElsewhere([cancellation] { cancellation->StartCancel(); });
  });
  source->AwaitStep(
      request->step_id(), request->buf_rendezvous_key(), cancellation.get(),
      [=, done = std::move(done)](const absl::Status& status) {
        options->ClearCancelCallback();
        ticket->Release();
        (void)cancellation;  // Lives until now.
        if (!status.ok()) return done(status);
        GrpcWorker::RecvBufAsync(options, request, response, done);
      });
}

absl::Status FuseWorker::Accept(const tensorflow::RecvTensorRequest& request,
                                bool by_parts,
                                std::shared_ptr<const ParsedKeys>* keys,
                                RequestBudget::Ticket* ticket) {
  const std::string& message = request.transport_options().value();
  const absl::Status around =
      CheckBytesAround(request, "FuseRecvTensorRequest");
  if (!around.ok()) return around;
  // Requests by parts never repeat.
  if (!by_parts) *keys = request_cache_.Find(message);
  absl::StatusOr<RequestSize> size =
      *keys == nullptr ? MeasureRequest(message) : (*keys)->size;
  if (!size.ok()) return size.status();
  if (size->keys > 0 || by_parts) {  // A probe is answered at once.
    auto admitted = RequestBudget::Get()->Admit(request.step_id(),
                                                RequestCost(*size, by_parts));
    if (!admitted.ok()) return admitted.status();
    *ticket = *std::move(admitted);
  }
  if (*keys != nullptr) return absl::OkStatus();
  auto parsed = ParseRequest(message, *size);
  if (!parsed.ok()) return parsed.status();
  *keys = *std::move(parsed);
  if (by_parts) {
    if (request.request_id() == 0) {
      return absl::InvalidArgumentError(
          "FuseRecvTensorRequest: a request by parts has no request id, by "
          "which its rest is asked for");
    }
    return (*keys)->source.FullKey().empty()
               ? absl::InvalidArgumentError(
                     "FuseRecvTensorRequest: a request by parts asks for no "
                     "tensor")
               : absl::OkStatus();
  }
  // Questions about requests and iterations of loops never repeat, and there
  // are many: they would push out what does.
  if ((*keys)->stalled_request_id == 0 && (*keys)->awaited_request_id == 0 &&
      !(*keys)->in_loop) {
    request_cache_.Insert(message, *keys);
  }
  return absl::OkStatus();
}

absl::Status FuseWorker::Check(const tensorflow::RecvTensorRequest& request,
                               bool by_parts, const ParsedKeys& keys) {
  // A request that the network delivered twice must not take the tensors of the
  // next one. The error prints the request: without the keys.
  tensorflow::RecvTensorRequest header;
  header.set_step_id(request.step_id());
  header.set_request_id(request.request_id());
  absl::Status status = recent_request_ids_.TrackUnique(
      request.request_id(), "FuseRecvTensor (tf_fuse)", header);
  if (!status.ok()) return status;
  // All keys have the same source: one look is enough.
  tensorflow::Device* device = nullptr;
  status = PrepareRecvTensor(keys.source, &device);
  const bool can_be_copied =
      device == nullptr || device->device_type() == tensorflow::DEVICE_CPU ||
      (device->device_type() == tensorflow::DEVICE_GPU && !by_parts);
  if (status.ok() && !can_be_copied) {
    return absl::UnimplementedError(absl::StrCat(
        "fused receives are served from the memory of CPUs, and of GPUs "
        "unless by parts, not from ",
        device->name()));
  }
  return status;
}

}  // namespace tf_fuse
