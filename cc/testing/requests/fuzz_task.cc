// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "testing/requests/fuzz_task.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/log/globals.h"
#include "base/limits.h"
#include "base/metrics.h"
#include "testing/program_main.h"
#include "testing/tensor_values.h"
#include "transport/message/failed_slots.h"
#include "transport/watch/recv_trace.h"
#include "transport/watch/watch.h"

namespace tf_fuse {
namespace testing {

using tensorflow::RecvTensorRequest;
using tensorflow::Rendezvous;

namespace {

// Nothing is left to another thread, so what has no answer then gets none.
constexpr int kMostEnds = 20;

// So low that a few hundred bytes reach them.
void SetLimits() {
  const auto set = [](const char* variable, const char* value) {
    setenv(variable, value, /*overwrite=*/1);
  };
  set(kMaxKeysPerRequestVariable, "64");
  set(kMaxPackedTensorBytesVariable, "2048");
  set(kMaxFrameBytesVariable, "4096");
  set(kMaxPendingRequestsVariable, "20");  // 4 of one step.
  set(kMaxPendingBytesVariable, "150000");
  set(kMaxUnsentFrameBytesVariable, "16384");
  // A data channel would answer on threads of its own.
  set("TF_FUSE_COLLECTIVE_PATHS", "grpc");
  // TensorFlow logs each step that is aborted, protobuf each name that is not
  // UTF-8.
  set("TF_CPP_MIN_LOG_LEVEL", "3");
  absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal);
}

void CheckAtRest() {
  const Metrics& m = *Metrics::Get();
  for (const std::atomic<int64_t>* gauge :
       {&m.pending_requests, &m.pending_bytes, &m.unsent_frame_bytes,
        &m.open_steps, &m.pending_receives, &m.partial_tensors}) {
    if (gauge->load() != 0) Die("left behind", m.ToJson());
  }
  if (Watch::Get()->Describe().receives_size() != 0) Die("still waits", "");
}

}  // namespace

void Die(const std::string& what, const std::string& detail) {
  std::fprintf(stderr, "request_fuzz: %s: %s\n", what.c_str(), detail.c_str());
  std::abort();
}

Tasks::Tasks()
    : sender("/job:ps/replica:0/task:0", 1, 1,
             std::make_unique<LoopbackWorkers>()),
      wire(&sender),
      receiver("/job:worker/replica:0/task:0", 2, 1,
               std::make_unique<LoopbackWorkers>(&wire)) {
  // TensorFlow aborts the step of a single receive a second later, on a thread
  // of its own: too many of them.
  wire.set_cancels_singles(false);
}

Tasks* Tasks::Get() {
  // Never destroyed: TensorFlow's threads may still use them at the end.
  static Tasks* tasks = [] {
    SetLimits();
    return new Tasks;
  }();
  return tasks;
}

void Tasks::Schedule(std::function<void()> closure) {
  absl::MutexLock lock(&mu_);
  scheduled_.push_back(std::move(closure));
}

void Tasks::RunScheduled() {
  while (true) {
    std::function<void()> closure;
    {
      absl::MutexLock lock(&mu_);
      if (scheduled_.empty()) return;
      closure = std::move(scheduled_.front());
      scheduled_.pop_front();
    }
    closure();
  }
}

Scenario::Scenario() : tasks_(Tasks::Get()), first_step_(tasks_->next_id) {
  tasks_->next_id += 3;
  tasks_->wire.set_tamper([this](std::string* bytes, absl::Status* status) {
    Change change;
    {
      absl::MutexLock lock(&mu_);
      if (changes_.empty()) return;
      change = std::move(changes_.front());
      changes_.pop_front();
    }
    if (change.code != 0) {
      *status = absl::Status(static_cast<absl::StatusCode>(change.code),
                             "changed on the way");
      if (!change.payload_type.empty()) {
        status->SetPayload(change.payload_type, absl::Cord(change.payload));
      }
      return;
    }
    const int64_t size = static_cast<int64_t>(bytes->size()) + change.resize;
    bytes->resize(static_cast<size_t>(std::max<int64_t>(size, 0)));
    for (uint8_t i = 0; i < change.bytes && !bytes->empty(); ++i) {
      (*bytes)[(change.at + i) % bytes->size()] =
          static_cast<char>(change.value >> (8 * i));
    }
  });
}

void Scenario::Adopt(RecvTensorRequest* request) const {
  v1::FuseRecvTensorRequest fused;
  auto* value = request->mutable_transport_options()->mutable_value();
  if (!fused.ParseFromString(*value)) return;
  fused.set_send_device(tasks_->sender.device_name());
  fused.set_send_device_incarnation(1);
  *value = fused.SerializeAsString();
}

RecvTensorRequest Scenario::Envelope(int64_t step, const std::string& value,
                                     bool by_parts) {
  RecvTensorRequest request;
  request.set_step_id(step);
  request.set_request_id(NewRequestId());
  request.set_rendezvous_key(kFusedRendezvousKey);
  request.mutable_transport_options()->set_type_url(
      by_parts ? kPartialRequestTypeUrl : kFusedRequestTypeUrl);
  request.mutable_transport_options()->set_value(value);
  return request;
}

std::string Scenario::RestsOf(const std::vector<int64_t>& request_ids) const {
  v1::FuseRecvTensorRequest request;
  request.set_frame_version(3);
  request.set_send_device(tasks_->sender.device_name());
  request.set_send_device_incarnation(1);
  request.set_recv_device(tasks_->receiver.device_name());
  for (const int64_t id : request_ids) request.add_rest_of_requests(id);
  return request.SerializeAsString();
}

void Scenario::Begin(int64_t step) {
  steps_.insert(step);
  (void)tasks_->sender.Begin(step);  // The second time it has no effect.
}

void Scenario::Send(int64_t step, const ParsedKeys& keys, size_t stride) {
  Begin(step);
  const auto rendezvous = tasks_->sender.Step(step);
  for (size_t i = 0; i < keys.keys.size(); i += stride) {
    const Slot value = ValueOf(keys.keys[i].edge_name);
    // Refused for a key of another task, or after an abort.
    (void)rendezvous->Send(keys.keys[i], Rendezvous::Args(), value.tensor,
                           value.is_dead);
  }
}

void Scenario::SendNames(int64_t step, const std::vector<std::string>& names,
                         const tensorflow::FrameAndIter& frame_iter) {
  FusedKeys keys;
  keys.send_device = tasks_->sender.device_name();
  keys.send_device_incarnation = 1;
  keys.recv_device = tasks_->receiver.device_name();
  keys.tensor_names = names;
  ParsedKeys parsed;
  parsed.keys.resize(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    if (!ParseSlotKey(keys, i, frame_iter, &parsed.keys[i]).ok()) {
      Die("key", names[i]);
    }
  }
  Send(step, parsed, 1);
}

std::shared_ptr<Asked> Scenario::Ask(const RecvTensorRequest& request) {
  auto asked = std::make_shared<Asked>();
  asked->request = request;
  const auto& options = request.transport_options();
  asked->by_parts = options.type_url() == kPartialRequestTypeUrl;
  if (request.has_transport_options() &&
      (asked->by_parts || options.type_url() == kFusedRequestTypeUrl)) {
    CheckMeasure(options.value());
    const auto size = MeasureRequest(options.value());
    if (size.ok()) {
      auto parsed = ParseRequest(options.value(), *size);
      if (parsed.ok()) asked->keys = *std::move(parsed);
    }
  }
  steps_.insert(request.step_id());
  asked_.push_back(asked);
  tasks_->sender.worker()->GrpcRecvTensorAsync(
      &asked->options, &asked->request, asked->answer.buffer(),
      [this, asked](const absl::Status& status) {
        asked->options.ClearCancelCallback();
        absl::MutexLock lock(&mu_);
        ++asked->answers;
        asked->status = status;
        answered_.push_back(asked.get());
      });
  return asked;
}

void Scenario::Cancel(const std::shared_ptr<Asked>& asked) {
  // TensorFlow aborts the step of a single receive a second later, on a thread
  // of its own: too many of them.
  if (asked->keys != nullptr) asked->options.StartCancel();
}

void Scenario::Abort(int64_t step) {
  steps_.insert(step);
  tasks_->sender.Step(step)->StartAbort(absl::InternalError("aborted"));
}

void Scenario::AbortReceiver(int64_t step, const absl::Status& status) {
  steps_.insert(step);
  tasks_->receiver.Step(step)->StartAbort(status);
}

void Scenario::End(int64_t step) {
  names_.erase(step);
  tasks_->sender.End(step);
  tasks_->receiver.End(step);
}

void Scenario::Tick(int64_t request_id) {
  const std::shared_ptr<Waiting> waiting = Watch::Get()->Find(request_id);
  if (waiting != nullptr) waiting->OnTick(uint64_t{1} << 50);
}

void Scenario::Profile(bool on) {
  if (on) {
    RecvTrace::Get()->Start();
  } else {
    int64_t dropped = 0;
    RecvTrace::Get()->Stop(&dropped);
  }
  profiling_ = on;
}

std::shared_ptr<Scenario::Received> Scenario::Expect(
    const std::vector<std::string>& names, std::vector<bool> copy_out,
    bool changed) {
  auto keys = std::make_shared<FusedKeys>();
  keys->send_device = tasks_->sender.device_name();
  keys->send_device_incarnation = 1;
  keys->recv_device = tasks_->receiver.device_name();
  keys->tensor_names = names;
  keys->types = TypesOf(names);
  keys->copy_out = std::move(copy_out);
  if (!FinishFusedKeys(keys.get()).ok()) Die("keys", "refused");
  auto received = std::make_shared<Received>();
  received->keys = keys;
  received->changed = changed;
  received_.push_back(received);
  return received;
}

bool Scenario::TakeChanges(std::deque<Change> changes) {
  absl::MutexLock lock(&mu_);
  any_change_ |= !changes.empty();
  // An answer that comes late may take the changes of another one.
  for (const auto& other : received_) other->changed |= !changes.empty();
  for (Change& change : changes) changes_.push_back(std::move(change));
  return !changes_.empty();
}

FusedDone Scenario::DoneOf(const std::shared_ptr<Received>& received) {
  return [this, received](const absl::Status& status, std::vector<Slot> slots) {
    absl::MutexLock lock(&mu_);
    ++received->answers;
    received->status = status;
    received->slots = std::move(slots);
  };
}

void Scenario::Receive(int64_t step, const std::vector<std::string>& names,
                       const tensorflow::FrameAndIter& frame_iter,
                       std::vector<bool> copy_out, std::deque<Change> changes) {
  const bool changed = TakeChanges(std::move(changes));
  const auto received = Expect(names, std::move(copy_out), changed);
  steps_.insert(step);
  (void)tasks_->receiver.Begin(step);
  tasks_->receiver.Step(step)->RecvFusedAsync(
      received->keys, frame_iter, Rendezvous::Args(), DoneOf(received));
}

void Scenario::ReceiveParts(int64_t step, const std::vector<std::string>& names,
                            const tensorflow::FrameAndIter& frame_iter,
                            const std::vector<bool>& copy_out,
                            std::deque<Change> changes, bool repeat) {
  (void)TakeChanges(std::move(changes));
  steps_.insert(step);
  (void)tasks_->receiver.Begin(step);
  auto& cancellation = cancellations_[step];
  if (cancellation == nullptr) {
    cancellation = std::make_unique<tensorflow::CancellationManager>();
  }
  Rendezvous::Args args;
  args.cancellation_manager = cancellation.get();
  for (size_t i = 0; i < names.size(); ++i) {
    const bool first =
        names_[step].insert({frame_iter.frame_id, names[i]}).second;
    if (!first && !repeat) continue;
    // Once the two sides take the rest of an answer for another one, so they
    // do with what shares a request with it.
    const auto received = Expect({names[i]}, {copy_out[i]}, any_change_);
    tasks_->receiver.Step(step)->RecvDynamicAsync(received->keys, frame_iter,
                                                  args, DoneOf(received));
  }
}

void Scenario::CancelParts(int64_t step) {
  const auto found = cancellations_.find(step);
  if (found == cancellations_.end()) return;
  cancelled_.push_back(std::move(found->second));
  cancellations_.erase(found);
  cancelled_.back()->StartCancel();
}

bool Scenario::AllAnswered() {
  return std::all_of(asked_.begin(), asked_.end(),
                     [](const auto& asked) { return asked->answers > 0; }) &&
         std::all_of(received_.begin(), received_.end(),
                     [](const auto& recv) { return recv->answers > 0; });
}

bool Scenario::EndAll() {
  for (const int64_t step : steps_) End(step);
  tasks_->RunScheduled();
  absl::MutexLock lock(&mu_);
  return AllAnswered();
}

void Scenario::Finish() {
  // Again and again, as a receiver may ask anew when an answer says so, or
  // fetch the tensors that a frame leaves out.
  for (int i = 0; !EndAll(); ++i) {
    if (i == kMostEnds) Die("a request was not answered", "");
  }
  if (profiling_) Profile(false);
  for (const auto& received : received_) CheckReceived(*received);
  for (const auto& asked : asked_) {
    if (asked->answers != 1) Die("answered twice", asked->status.ToString());
  }
  std::vector<Asked*> answered;
  {
    absl::MutexLock lock(&mu_);
    answered.swap(answered_);
  }
  for (Asked* asked : answered) CheckAnswer(asked);
  left_.clear();
  received_.clear();
  asked_.clear();
  tensorflow::LocalRendezvous::ReleaseAbortedRendezvous();
  CheckAtRest();
}

}  // namespace testing
}  // namespace tf_fuse
