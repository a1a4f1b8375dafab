// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target of the request handler and of what reads its answers. The first
// byte of an input, modulo 4, says what the rest is:
//
//   0  two bytes of a plan, then a RecvTensorRequest as a peer sends it
//   1  the same with a FuseRecvTensorRequest, which is put into a request
//   2  types and options of a receive, then a frame that it gets as its answer
//   3  a script: requests, steps, tensors, cancellations, receives in any order
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
        keep_step(b & 16) {}

  bool begin, send_first, send_later, cancel, profile, again, duplicate, adopt;
  bool part, abort, questions, tick, keep_step;
};

void RunRequest(const Plan& plan, RecvTensorRequest request) {
  Scenario scenario;
  if (plan.adopt) scenario.Adopt(&request);
  // Else TensorFlow would know the id of a former input.
  request.set_request_id(scenario.NewRequestId());
  if (!plan.keep_step) request.set_step_id(scenario.step(0));
  const int64_t step = request.step_id();
  if (plan.profile) scenario.Profile(true);
  if (plan.begin) scenario.Begin(step);
  // What it asks for is known once it has been asked.
  const auto first = scenario.Ask(request);
  if (first->keys != nullptr && plan.send_first) {
    scenario.Send(step, *first->keys, plan.part ? 2 : 1);
    // A request that finds everything there.
    request.set_request_id(scenario.NewRequestId());
    scenario.Ask(request);
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
  }
  if (plan.abort) scenario.Abort(step);
  scenario.Finish();
}

void RunMessage(const Plan& plan, const std::string& bytes, bool enveloped) {
  RecvTensorRequest request;
  if (enveloped) {
    // gRPC answers what is no message itself.
    if (!request.ParseFromString(bytes)) return;
  } else {
    CheckMeasure(bytes);
    Scenario scenario;
    request = scenario.Envelope(0, bytes);
    scenario.Finish();
  }
  RunRequest(plan, std::move(request));
}

// Reads all that UnpackFrame() gives, after the frame itself was let go.
absl::Status Unpack(const std::string& bytes,
                    const tensorflow::DataTypeVector& types,
                    const std::vector<bool>& copy_out, bool waits) {
  Tensor frame(tensorflow::DT_UINT8,
               tensorflow::TensorShape({static_cast<int64_t>(bytes.size())}));
  if (!bytes.empty()) std::memcpy(frame.data(), bytes.data(), bytes.size());
  std::vector<Slot> slots;
  std::vector<int64_t> waits_micros;
  const absl::Status status = UnpackFrame(frame, types, copy_out, &slots,
                                          waits ? &waits_micros : nullptr);
  (void)ReadBytesResponse(frame);
  frame = Tensor();
  if (!status.ok()) {
    if (status.message().empty()) Die("an error without text", "of a frame");
    return status;
  }
  if (slots.size() != types.size()) Die("slots", "of a frame");
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
void RunAnswer(const uint8_t* data, size_t size) {
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
  (void)Unpack(bytes, types, copy_out, options & 1);
  // The same with any shape of an answer that TensorFlow may hand us.
  if (options & 2) {
    Tensor other(tensorflow::DT_STRING, tensorflow::TensorShape({}));
    std::vector<Slot> slots;
    if (UnpackFrame(other, types, {}, &slots).ok()) Die("no frame", "");
  }
}

std::string Name(uint8_t number) {
  // Some in which a key cannot be found again, or has to be escaped.
  static constexpr const char* kOdd[] = {"",       ";",     "a;b",
                                         "edge\n", "\xff/", "^ctl"};
  if (number >= 230 && number % 4 == 0) return kOdd[number % std::size(kOdd)];
  return absl::StrCat("edge_", number % 40);
}

std::string Fields(Script* script) {
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
  return fused.SerializeAsString();
}

std::deque<Change> Changes(Script* script, int* errors) {
  std::deque<Change> changes(script->Byte() % 4);
  for (Change& change : changes) {
    const uint8_t what = script->Byte();
    if (what >= 240 && *errors < 3) {
      ++*errors;
      change.code = 1 + what % 16;
      change.payload_type = what % 2
                                ? "type.googleapis.com/tf_fuse.v1.Postponed"
                                : "type.googleapis.com/tf_fuse.v1.FailedSlots";
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

void RunScript(Script* script) {
  Scenario scenario;
  int errors = 0;
  for (int ops = 0; ops < 30 && !script->done(); ++ops) {
    const uint8_t what = script->Byte();
    // Else what was scheduled waits for one more.
    if (what % 4 != 3) Tasks::Get()->RunScheduled();
    const int64_t step = scenario.step(what >> 4);
    const auto& asked = scenario.asked();
    const auto one = [&] { return asked[script->Byte() % asked.size()]; };
    switch (what % 16) {
      case 0:
        scenario.Begin(step);
        break;
      case 1:
      case 2:
      case 3:
        scenario.Ask(scenario.Envelope(step, Fields(script)));
        break;
      case 4:
      case 5:
        if (!asked.empty()) {
          const auto chosen = one();
          if (chosen->keys != nullptr) {
            scenario.Send(chosen->request.step_id(), *chosen->keys,
                          1 + script->Byte() % 3);
          }
        }
        break;
      case 6:
        if (!asked.empty()) scenario.Cancel(one());
        break;
      case 7:
        scenario.Abort(step);
        break;
      case 8:
        scenario.End(step);
        break;
      case 9:
        if (!asked.empty()) scenario.Tick(one()->request.request_id());
        break;
      case 10:
        scenario.Profile(what & 16);
        break;
      case 11:
        if (!asked.empty()) scenario.Ask(one()->request);  // A duplicate.
        break;
      case 12: {
        v1::FuseRecvTensorRequest query;
        query.set_frame_version(1);
        query.set_stalled_request_id(
            asked.empty() ? script->Byte() : one()->request.request_id());
        scenario.Ask(scenario.Envelope(step, query.SerializeAsString()));
        break;
      }
      default: {
        std::vector<std::string> names;
        std::vector<bool> copy_out;
        const uint8_t first = script->Byte();
        const uint8_t options = script->Byte();
        for (int i = 0; i < 1 + options / 2 % 8; ++i) {
          names.push_back(absl::StrCat("edge_", (first + i) % 40));
          copy_out.push_back(options & 128);
        }
        const tensorflow::FrameAndIter frame_iter(options % 2, 0);
        if (options & 16) scenario.SendNames(step, names, frame_iter);
        scenario.Receive(step, names, frame_iter, copy_out,
                         Changes(script, &errors));
        if (options & 32) scenario.SendNames(step, names, frame_iter);
      }
    }
  }
  scenario.Finish();
}

}  // namespace

void FuzzOne(const uint8_t* data, size_t size) {
  Tasks::Get();
  if (size < 3) return;
  switch (data[0] % 4) {
    case 0:
    case 1:
      RunMessage(Plan(data[1], data[2]), {data + 3, data + size},
                 data[0] % 4 == 0);
      break;
    case 2:
      RunAnswer(data + 1, size - 1);
      break;
    default: {
      Script script(data + 1, size - 1);
      RunScript(&script);
    }
  }
}

}  // namespace testing
}  // namespace tf_fuse

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_fuse::testing::FuzzOne(data, size);
  return 0;
}
