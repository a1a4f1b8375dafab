// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target of the request handler and of what reads its answers. The first
// byte of an input, modulo 8, says what the rest is:
//
//   0  two bytes of a plan, then a RecvTensorRequest as a peer sends it
//   1  the same with a FuseRecvTensorRequest, which is put into a request
//   2  types and options of a receive, then a frame that it gets as its answer
//   3  a script: requests, steps, tensors, cancellations, receives in any order
//   4  as 1, in a request by parts
//   5  as 2, with an answer to a request by parts
//   6  a script with requests and receives by parts, and rests of answers
//   7  as 6
//
// The handler is the real one, with TensorFlow's rendezvous and devices, and
// whatever is asked has to end as fuzz_task.h says. A broken promise ends the
// process.
//
// With libFuzzer:  clang++ -fsanitize=fuzzer,address,undefined
// Without:         link request_main_fuzz.cc, which has a main() of its own.

#include <algorithm>
#include <string>
#include <vector>

#include "frame/frame_testing.h"
#include "transport/fuse_status.h"
#include "transport/fuzz_task.h"
#include "transport/fuzz_values.h"
#include "transport/introspection.h"

namespace tf_fuse {
namespace testing {
namespace {

using frame::testing::Script;
using tensorflow::RecvTensorRequest;
using tensorflow::Tensor;

// What is done around one request.
struct Plan {
  Plan(uint8_t a, uint8_t b)
      : begin(a & 1),
        send_first(a & 2),
        send_later(a & 4),
        cancel(a & 8),
        profile(a & 16),
        again(a & 32),
        duplicate(a & 64),
        adopt(a & 128),
        part(b & 1),
        abort(b & 2),
        questions(b & 4),
        tick(b & 8),
        keep_step(b & 16),
        rests(b & 32),
        renumber(b & 64) {}

  bool begin, send_first, send_later, cancel, profile, again, duplicate, adopt;
  bool part, abort, questions, tick, keep_step, rests, renumber;
};

// Puts the ids of answers that have left something in the place of those that
// `request`, recorded elsewhere, asks the rests of.
void Renumber(Scenario* scenario, RecvTensorRequest* request) {
  v1::FuseRecvTensorRequest fused;
  auto* value = request->mutable_transport_options()->mutable_value();
  if (!fused.ParseFromString(*value)) return;
  const int64_t step = request->step_id();
  const int rests = std::min(fused.rest_of_requests_size(), 3);
  fused.clear_rest_of_requests();
  for (int i = 0; i < rests; ++i) {
    // Of two tensors the first is there.
    v1::FuseRecvTensorRequest two;
    (void)two.ParseFromString(scenario->RestsOf({}));
    two.add_tensor_names(absl::StrCat("first_", i));
    two.add_tensor_names(absl::StrCat("second_", i));
    const auto asked =
        scenario->Ask(scenario->Envelope(step, two.SerializeAsString(), true));
    if (asked->keys != nullptr) scenario->Send(step, *asked->keys, 2);
    Tasks::Get()->RunScheduled();
    fused.add_rest_of_requests(asked->request.request_id());
  }
  *value = fused.SerializeAsString();
}

void RunRequest(const Plan& plan, RecvTensorRequest request) {
  Scenario scenario;
  if (plan.adopt) scenario.Adopt(&request);
  // Else TensorFlow would know the id of a former input.
  request.set_request_id(scenario.NewRequestId());
  if (!plan.keep_step) request.set_step_id(scenario.step(0));
  const int64_t step = request.step_id();
  if (plan.profile) scenario.Profile(true);
  if (plan.begin) scenario.Begin(step);
  if (plan.renumber) Renumber(&scenario, &request);
  // What it asks for is known once it has been asked.
  const auto first = scenario.Ask(request);
  if (first->keys != nullptr && plan.send_first) {
    scenario.Send(step, *first->keys, plan.part ? 2 : 1);
    // A request that finds everything there.
    request.set_request_id(scenario.NewRequestId());
    scenario.Ask(request);
  }
  // The answers by parts.
  if (first->by_parts) Tasks::Get()->RunScheduled();
  if (plan.rests) {
    // The second is refused.
    const std::string rests = scenario.RestsOf({first->request.request_id()});
    scenario.Ask(scenario.Envelope(step, rests, true));
    scenario.Ask(scenario.Envelope(step, rests, true));
  }
  if (plan.duplicate) scenario.Ask(request);
  if (plan.again) {
    request.set_request_id(scenario.NewRequestId());
    scenario.Ask(request);
  }
  if (plan.questions) {
    v1::FuseRecvTensorRequest question;
    question.set_frame_version(1);
    question.set_question(v1::QUESTION_WAITING);
    scenario.Ask(scenario.Envelope(step, question.SerializeAsString()));
    question.clear_question();
    question.set_stalled_request_id(request.request_id());
    scenario.Ask(scenario.Envelope(step, question.SerializeAsString()));
  }
  if (plan.tick) scenario.Tick(request.request_id());
  if (plan.cancel) scenario.Cancel(first);
  if (first->keys != nullptr && plan.send_later) {
    scenario.Send(step, *first->keys, plan.part ? 3 : 1);
    if (first->by_parts) Tasks::Get()->RunScheduled();
  }
  if (plan.abort) scenario.Abort(step);
  scenario.Finish();
}

void RunMessage(const Plan& plan, const std::string& bytes, bool enveloped,
                bool by_parts) {
  RecvTensorRequest request;
  if (enveloped) {
    // gRPC answers what is no message itself.
    if (!request.ParseFromString(bytes)) return;
  } else {
    CheckMeasure(bytes);
    Scenario scenario;
    request = scenario.Envelope(0, bytes, by_parts);
    scenario.Finish();
  }
  RunRequest(plan, std::move(request));
}

// Those of the tensors that an answer by parts holds.
tensorflow::DataTypeVector TypesAt(const tensorflow::DataTypeVector& asked,
                                   const std::vector<size_t>& positions) {
  if (positions.empty()) Die("no tensor", "in a part");
  tensorflow::DataTypeVector types;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] >= asked.size())
      Die("a position", "beyond what was asked");
    if (i > 0 && positions[i] <= positions[i - 1])
      Die("positions", "in disorder");
    types.push_back(asked[positions[i]]);
  }
  return types;
}

// Reads all that UnpackFrame(), or UnpackPartialFrame(), gives, after the frame
// itself was let go.
absl::Status Unpack(const std::string& bytes,
                    const tensorflow::DataTypeVector& asked,
                    const std::vector<bool>& copy_out, bool waits,
                    bool by_parts = false) {
  Tensor frame(tensorflow::DT_UINT8,
               tensorflow::TensorShape({static_cast<int64_t>(bytes.size())}));
  if (!bytes.empty()) std::memcpy(frame.data(), bytes.data(), bytes.size());
  std::vector<Slot> slots;
  std::vector<int64_t> waits_micros;
  std::vector<int64_t>* const wanted_waits = waits ? &waits_micros : nullptr;
  tensorflow::DataTypeVector types = asked;
  absl::Status status;
  if (by_parts) {
    std::vector<size_t> positions;
    status = UnpackPartialFrame(frame, asked, copy_out, &positions, &slots,
                                wanted_waits);
    if (status.ok()) types = TypesAt(asked, positions);
  } else {
    status = UnpackFrame(frame, asked, copy_out, &slots, wanted_waits);
  }
  (void)ReadBytesResponse(frame);
  frame = Tensor();
  if (!status.ok()) {
    if (status.message().empty()) Die("an error without text", "of a frame");
    return status;
  }
  if (slots.size() != types.size()) Die("slots", "of a frame");
  if (!waits_micros.empty() && waits_micros.size() != types.size()) {
    Die("waits", "of a frame");
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].is_dead || slots[i].beside) continue;
    if (slots[i].tensor.dtype() != types[i]) Die("type", "of a frame");
    if (!slots[i].tensor.IsInitialized()) Die("no value", "of a frame");
    (void)BytesOf(slots[i].tensor);
  }
  return status;
}

// A frame with one slot, a serialized tensor of one dimension.
std::string FrameOf(tensorflow::DataType type, int64_t elements,
                    const std::string& payload) {
  frame::EncodeLimits limits;
  limits.other_types = {tensorflow::DT_STRING, [](uint32_t dtype) {
                          return dtype == tensorflow::DT_VARIANT ||
                                 dtype == tensorflow::DT_RESOURCE;
                        }};
  frame::FrameBuilder builder(limits);
  builder.AddSerialized(type, &elements, 1, payload.size());
  uint64_t total = 0;
  if (!builder.Finish(&total).ok()) return "";
  std::string bytes(total, '\0');
  auto* out = reinterpret_cast<uint8_t*>(bytes.data());
  builder.WriteHeader(out);
  builder.CopyPayload(0, payload.data(), out);
  return bytes;
}

// options, number of types, types, and the frame; or, by the options, what a
// serialized tensor's bytes are in it.
void RunAnswer(const uint8_t* data, size_t size, bool by_parts) {
  if (size < 2) return;
  const uint8_t options = data[0];
  const size_t count = std::min<size_t>(data[1] % 70, size - 2);
  tensorflow::DataTypeVector types;
  std::vector<bool> copy_out;
  for (size_t i = 0; i < count; ++i) {
    types.push_back(static_cast<tensorflow::DataType>(data[2 + i] % 32));
    copy_out.push_back(data[2 + i] & 128);
  }
  const std::string bytes(data + 2 + count, data + size);
  if (options & 4) {
    const auto type =
        options & 8 ? tensorflow::DT_RESOURCE : tensorflow::DT_VARIANT;
    (void)Unpack(FrameOf(type, data[1] % 4, bytes), {type}, {}, false);
    return;
  }
  (void)Unpack(bytes, types, copy_out, options & 1, by_parts);
  // The same with any shape of an answer that TensorFlow may hand us.
  if (options & 2) {
    Tensor other(tensorflow::DT_STRING, tensorflow::TensorShape({}));
    std::vector<Slot> slots;
    std::vector<size_t> positions;
    if (by_parts
            ? UnpackPartialFrame(other, types, copy_out, &positions, &slots)
                  .ok()
            : UnpackFrame(other, types, {}, &slots).ok()) {
      Die("no frame", "");
    }
  }
}

std::string Name(uint8_t number) {
  // Some in which a key cannot be found again, or has to be escaped.
  static constexpr const char* kOdd[] = {"",       ";",     "a;b",
                                         "edge\n", "\xff/", "^ctl"};
  if (number >= 230 && number % 4 == 0) return kOdd[number % std::size(kOdd)];
  return absl::StrCat("edge_", number % 40);
}

std::string Fields(Script* script, const std::vector<int64_t>& rests = {}) {
  v1::FuseRecvTensorRequest fused;
  const uint8_t what = script->Byte();
  fused.set_frame_version(what % 16 < 14 ? 2 : script->Byte());
  fused.set_send_device(what / 16 == 15 ? Name(script->Byte())
                                        : Tasks::Get()->sender.device_name());
  fused.set_send_device_incarnation(what / 16 == 14 ? script->Byte() : 1);
  fused.set_recv_device(Tasks::Get()->receiver.device_name());
  const uint8_t options = script->Byte();
  if (options & 1) fused.set_report_waits(true);
  if (options & 2) fused.set_frame_id(script->Number(options % 9));
  if (options & 2) fused.set_iteration(script->Byte() - 1);
  if (options & 4) fused.set_max_frame_bytes(script->Number(options % 3));
  if (options & 8) fused.set_max_packed_tensor_bytes(script->Number(8));
  if (options & 16) {
    fused.set_question(static_cast<v1::Question>(script->Byte() % 6));
  }
  // One after the other: of two equal ones nothing would be served. Those from
  // a later start are odd, or equal to others.
  const uint8_t first = script->Byte();
  const uint8_t count = script->Byte() % (options & 128 ? 70 : 8);
  for (uint8_t i = 0; i < count; ++i) {
    fused.add_tensor_names(
        Name(static_cast<uint8_t>((first < 200 ? first % 40 : first) + i)));
  }
  for (const int64_t id : rests) fused.add_rest_of_requests(id);
  return fused.SerializeAsString();
}

// Ids of requests that were made before, and some others.
std::vector<int64_t> Rests(Script* script, const Scenario& scenario) {
  std::vector<int64_t> ids;
  const auto& asked = scenario.asked();
  for (int n = script->Byte() % 4; n > 0; --n) {
    const uint8_t which = script->Byte();
    ids.push_back(asked.empty() || which >= 232
                      ? script->Byte()
                      : asked[which % asked.size()]->request.request_id());
  }
  return ids;
}

std::deque<Change> Changes(Script* script, int* errors) {
  std::deque<Change> changes(script->Byte() % 4);
  for (Change& change : changes) {
    const uint8_t what = script->Byte();
    if (what >= 240 && *errors < 3) {
      ++*errors;
      change.code = 1 + what % 16;
      change.payload_type = what % 2 ? kPostponedPayload : kFailedSlotsPayload;
      for (size_t n = script->Byte() % 12; n > 0; --n) {
        change.payload += "0123456789,--99"[script->Byte() % 15];
      }
      continue;
    }
    change.at = script->Number(what % 3);
    change.bytes = what % 9;
    change.value = what & 64 ? script->Number(8) : script->Byte();
    if (what & 128) change.resize = script->Byte() - 128;
  }
  return changes;
}

// Some tensors, and what their receivers meet.
struct Receives {
  Receives(Script* script, int* errors) {
    const uint8_t first = script->Byte();
    options = script->Byte();
    for (int i = 0; i < 1 + options / 2 % 8; ++i) {
      names.push_back(absl::StrCat("edge_", (first + i) % 40));
      copy_out.push_back(options & 128);
    }
    frame_iter = tensorflow::FrameAndIter(options % 2, 0);
    changes = Changes(script, errors);
  }

  void Run(Scenario* scenario, int64_t step, bool by_parts) {
    if (options & 16) scenario->SendNames(step, names, frame_iter);
    if (by_parts) {
      scenario->ReceiveParts(step, names, frame_iter, copy_out,
                             std::move(changes), options & 64);
    } else {
      scenario->Receive(step, names, frame_iter, copy_out, std::move(changes));
    }
    if (options & 32) scenario->SendNames(step, names, frame_iter);
  }

  std::vector<std::string> names;
  std::vector<bool> copy_out;
  tensorflow::FrameAndIter frame_iter;
  uint8_t options;
  std::deque<Change> changes;
};

// What the operations of both kinds of scripts have in common.
class Runner {
 public:
  explicit Runner(Script* script) : script_(script) {}
  virtual ~Runner() = default;

  void Run() {
    for (int ops = 0; ops < 30 && !script_->done(); ++ops) {
      const uint8_t what = script_->Byte();
      // Else what was scheduled waits for one more.
      if (what % 4 != 3) Tasks::Get()->RunScheduled();
      RunOne(what, scenario_.step(what >> 4));
    }
    scenario_.Finish();
  }

 protected:
  virtual void RunOne(uint8_t what, int64_t step) = 0;

  // One that was asked before, or null.
  std::shared_ptr<Asked> One() {
    const auto& asked = scenario_.asked();
    return asked.empty() ? nullptr : asked[script_->Byte() % asked.size()];
  }
  void Send() {
    const auto chosen = One();
    if (chosen == nullptr || chosen->keys == nullptr) return;
    scenario_.Send(chosen->request.step_id(), *chosen->keys,
                   1 + script_->Byte() % 3);
  }
  void AskWhatIsMissing(int64_t step) {
    const auto chosen = One();
    v1::FuseRecvTensorRequest query;
    query.set_frame_version(1);
    query.set_stalled_request_id(
        chosen == nullptr ? script_->Byte() : chosen->request.request_id());
    scenario_.Ask(scenario_.Envelope(step, query.SerializeAsString()));
  }
  void Receive(int64_t step, bool by_parts) {
    Receives(script_, &errors_).Run(&scenario_, step, by_parts);
  }

  Script* const script_;
  Scenario scenario_;
  int errors_ = 0;
};

class PlainRunner : public Runner {
 public:
  using Runner::Runner;

 protected:
  void RunOne(uint8_t what, int64_t step) override {
    switch (what % 16) {
      case 0:
        return scenario_.Begin(step);
      case 1:
      case 2:
      case 3:
        scenario_.Ask(scenario_.Envelope(step, Fields(script_)));
        return;
      case 4:
      case 5:
        return Send();
      case 6:
        if (const auto one = One()) scenario_.Cancel(one);
        return;
      case 7:
        return scenario_.Abort(step);
      case 8:
        return scenario_.End(step);
      case 9:
        if (const auto one = One()) scenario_.Tick(one->request.request_id());
        return;
      case 10:
        return scenario_.Profile(what & 16);
      case 11:
        if (const auto one = One())
          scenario_.Ask(one->request);  // A duplicate.
        return;
      case 12:
        return AskWhatIsMissing(step);
      default:
        return Receive(step, /*by_parts=*/false);
    }
  }
};

class PartsRunner : public Runner {
 public:
  using Runner::Runner;

 protected:
  void RunOne(uint8_t what, int64_t step) override {
    switch (what % 16) {
      case 0:
        return scenario_.Begin(step);
      case 1:
        scenario_.Ask(scenario_.Envelope(step, Fields(script_)));
        return;
      case 2:
      case 3:
      case 4: {
        const std::vector<int64_t> rests = Rests(script_, scenario_);
        scenario_.Ask(scenario_.Envelope(step, Fields(script_, rests), true));
        return;
      }
      case 5:
      case 6:
        return Send();
      case 7:
        if (const auto one = One()) scenario_.Cancel(one);
        return;
      case 8:
        return EndStep(step);
      case 9:
        return scenario_.Profile(what & 16);
      case 10:
        return AskWhatIsMissing(step);
      case 11:
        if (const auto one = One()) {
          scenario_.Ask(scenario_.Envelope(
              one->request.step_id(),
              scenario_.RestsOf({one->request.request_id()}), true));
        }
        return;
      case 12:
        if (const auto one = One())
          scenario_.Ask(one->request);  // A duplicate.
        return;
      case 13:
        return Receive(step, /*by_parts=*/false);
      default:
        return Receive(step, /*by_parts=*/true);
    }
  }

 private:
  void EndStep(int64_t step) {
    const uint8_t how = script_->Byte();
    switch (how % 8) {
      case 0:
        return scenario_.Abort(step);
      case 1:
        return scenario_.CancelParts(step);
      case 2:
        return scenario_.End(step);
      case 3:
        if (const auto one = One()) scenario_.Tick(one->request.request_id());
        return;
      default: {
        // As an error that a peer has given to one of the step's receives.
        absl::Status status(static_cast<absl::StatusCode>(1 + how / 8 % 16),
                            "aborted by one of its receives");
        if (how % 8 == 5) status.SetPayload(kPostponedPayload, absl::Cord("1"));
        if (how % 8 == 6) status.SetPayload(kFailedSlotsPayload, absl::Cord());
        if (how % 8 == 7) {
          status.SetPayload(kFailedSlotsPayload, absl::Cord("0-0"));
        }
        return scenario_.AbortReceiver(step, status);
      }
    }
  }
};

}  // namespace

void FuzzOne(const uint8_t* data, size_t size) {
  Tasks::Get();
  if (size < 3) return;
  const int kind = data[0] % 8;
  switch (kind) {
    case 0:
    case 1:
    case 4:
      return RunMessage(Plan(data[1], data[2]), {data + 3, data + size},
                        /*enveloped=*/kind == 0, /*by_parts=*/kind == 4);
    case 2:
    case 5:
      return RunAnswer(data + 1, size - 1, /*by_parts=*/kind == 5);
    default: {
      Script script(data + 1, size - 1);
      if (kind == 3) {
        PlainRunner(&script).Run();
      } else {
        PartsRunner(&script).Run();
      }
    }
  }
}

}  // namespace testing
}  // namespace tf_fuse

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_fuse::testing::FuzzOne(data, size);
  return 0;
}
