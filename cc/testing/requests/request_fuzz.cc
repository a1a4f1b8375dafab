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
// Without:         link standalone_main.cc, which has a main() of its own.

#include <algorithm>
#include <string>
#include <vector>

#include "frame/frame_testing.h"
#include "testing/requests/fuzz_script.h"
#include "testing/requests/fuzz_task.h"
#include "testing/tensor_values.h"
#include "transport/message/failed_slots.h"
#include "transport/peers/ask_peer.h"

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
    question.set_frame_version(3);
    question.set_question(v1::QUESTION_WAITING);
    scenario.Ask(scenario.Envelope(step, question.SerializeAsString()));
    question.clear_question();
    question.set_stalled_request_id(request.request_id());
    scenario.Ask(scenario.Envelope(step, question.SerializeAsString()));
    question.clear_stalled_request_id();
    question.set_awaited_request_id(request.request_id());
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
    // gRPC itself answers bytes that are not a message.
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
      return kind == 3 ? RunPlainScript(&script) : RunPartsScript(&script);
    }
  }
}

}  // namespace testing
}  // namespace tf_fuse

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_fuse::testing::FuzzOne(data, size);
  return 0;
}
