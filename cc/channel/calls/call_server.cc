// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
#include "channel/calls/call_server.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/executors.h"

namespace tf_fuse {

namespace {

constexpr size_t kMaxCallsAtOnce = 1 << 16;
// gRPC limits texts and payloads likewise.
constexpr size_t kMaxStatusBytes = 8 << 10;

void PutStatus(const absl::Status& status, v1::CallAnswer* answer) {
  answer->set_code(static_cast<int>(status.code()));
  answer->set_text(std::string(status.message().substr(0, kMaxStatusBytes)));
  size_t room = kMaxStatusBytes;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    const size_t size = url.size() + payload.size();
    if (size > room) return;
    room -= size;
    (*answer->mutable_payloads())[std::string(url)] = std::string(payload);
  });
}

// What is cancelled may call back anything.
void CancelElsewhere(const std::shared_ptr<tensorflow::CallOptions>& options) {
  ScheduleElsewhere([options] { options->StartCancel(); });
}

}  // namespace

absl::StatusOr<char*> CallServer::DestinationOf(uint64_t bytes) {
  if (bytes > kMaxCallRequestBytes) {
    return absl::DataLossError(absl::StrCat("data channel: a request of ",
                                            bytes, " bytes, at most ",
                                            kMaxCallRequestBytes, " are read"));
  }
  request_.resize(bytes);
  return request_.data();
}

absl::Status CallServer::Begin(uint64_t call, const Options& options) {
  absl::MutexLock lock(&mu_);
  if (calls_.count(call) > 0) {
    return absl::DataLossError(
        "data channel: two requests have the same number");
  }
  if (calls_.size() >= kMaxCallsAtOnce) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "data channel: ", kMaxCallsAtOnce, " requests already wait"));
  }
  calls_[call] = options;
  return absl::OkStatus();
}

absl::Status CallServer::OnRequest(const v1::CallRequest& request,
                                   uint64_t bytes) {
  const uint64_t call = request.call();
  if (bytes == 0) request_.clear();
  const auto options = std::make_shared<tensorflow::CallOptions>();
  absl::Status status = Begin(call, options);
  if (absl::IsDataLoss(status)) return status;
  if (!status.ok()) {
    Answer(call, status, {});
    return absl::OkStatus();
  }
  // What waits for a step may wait longer than the channel is open.
  auto done = [weak = weak_from_this(), call, options](
                  const absl::Status& status, AnswerBytes bytes) {
    const std::shared_ptr<CallServer> self = weak.lock();
    if (self == nullptr) return;
    {
      absl::MutexLock lock(&self->mu_);
      self->calls_.erase(call);
    }
    self->Answer(call, status, std::move(bytes));
  };
  CallHandler* const handler = CallHandler::Find(request.server());
  if (handler == nullptr) {
    done(absl::UnavailableError("the task has ended"), {});
  } else {
    handler->Handle(request.method(), request_, options.get(), std::move(done));
  }
  return absl::OkStatus();
}

void CallServer::Answer(uint64_t call, const absl::Status& status,
                        AnswerBytes bytes) {
  v1::ChannelMessage message;
  v1::CallAnswer* answer = message.mutable_call_answer();
  answer->set_call(call);
  if (!status.ok()) {
    PutStatus(status, answer);
    return connection_->Send(message);
  }
  connection_->Send(message, std::move(bytes.pieces),
                    [owner = std::move(bytes.owner)](const absl::Status&) {});
}

void CallServer::Cancel(uint64_t call) {
  Options options;
  {
    absl::MutexLock lock(&mu_);
    auto found = calls_.find(call);
    if (found == calls_.end()) return;
    options = found->second;
  }
  CancelElsewhere(options);
}

void CallServer::CancelAll() {
  std::map<uint64_t, Options> calls;
  {
    absl::MutexLock lock(&mu_);
    calls = calls_;  // Each leaves the map when it is answered.
  }
  for (const auto& [call, options] : calls) CancelElsewhere(options);
}

}  // namespace tf_fuse
