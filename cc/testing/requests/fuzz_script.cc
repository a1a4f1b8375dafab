// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "testing/requests/fuzz_script.h"

#include <array>
#include <deque>
#include <string>
#include <vector>

#include "base/limits.h"
#include "testing/requests/fuzz_task.h"
#include "transport/message/failed_slots.h"

namespace tf_fuse {
namespace testing {
namespace {

using frame::testing::Script;

std::string Name(uint8_t number) {
  // Some in which a key cannot be found again, or has to be escaped.
  static constexpr const char* kOdd[] = {"",       ";",     "a;b",
                                         "edge\n", "\xff/", "^ctl"};
  if (number == 255) return std::string(kMaxKeyBytes, 'x');  // Too long.
  if (number >= 230 && number % 4 == 0) return kOdd[number % std::size(kOdd)];
  return absl::StrCat("edge_", number % 40);
}

std::string Fields(Script* script, const std::vector<int64_t>& rests = {}) {
  v1::FuseRecvTensorRequest fused;
  const uint8_t what = script->Byte();
  fused.set_frame_version(what % 16 < 14 ? 3 : script->Byte());
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

// What is done in a script.
enum class Op {
  kBegin,
  kAsk,
  kAskParts,
  kAskRest,
  kAskAgain,
  kAskWhatIsMissing,
  kSend,
  kCancel,
  kAbort,
  kEnd,
  kEndSomehow,
  kTick,
  kProfile,
  kReceive,
  kReceiveParts,
};

// By the last four bits of a byte. What was recorded has these numbers.
using Ops = std::array<Op, 16>;
constexpr Ops kPlainOps = {Op::kBegin,
                           Op::kAsk,
                           Op::kAsk,
                           Op::kAsk,
                           Op::kSend,
                           Op::kSend,
                           Op::kCancel,
                           Op::kAbort,
                           Op::kEnd,
                           Op::kTick,
                           Op::kProfile,
                           Op::kAskAgain,
                           Op::kAskWhatIsMissing,
                           Op::kReceive,
                           Op::kReceive,
                           Op::kReceive};
constexpr Ops kPartsOps = {Op::kBegin,
                           Op::kAsk,
                           Op::kAskParts,
                           Op::kAskParts,
                           Op::kAskParts,
                           Op::kSend,
                           Op::kSend,
                           Op::kCancel,
                           Op::kEndSomehow,
                           Op::kProfile,
                           Op::kAskWhatIsMissing,
                           Op::kAskRest,
                           Op::kAskAgain,
                           Op::kReceive,
                           Op::kReceiveParts,
                           Op::kReceiveParts};

class Runner {
 public:
  Runner(Script* script, const Ops& ops) : script_(script), ops_(ops) {}

  void Run() {
    for (int ops = 0; ops < 30 && !script_->done(); ++ops) {
      const uint8_t what = script_->Byte();
      // Else what was scheduled waits for one more.
      if (what % 4 != 3) Tasks::Get()->RunScheduled();
      RunOne(what, scenario_.step(what >> 4));
    }
    scenario_.Finish();
  }

 private:
  void RunOne(uint8_t what, int64_t step) {
    switch (ops_[what % 16]) {
      case Op::kBegin:
        return scenario_.Begin(step);
      case Op::kAsk:
        scenario_.Ask(scenario_.Envelope(step, Fields(script_)));
        return;
      case Op::kAskParts: {
        const std::vector<int64_t> rests = Rests(script_, scenario_);
        scenario_.Ask(scenario_.Envelope(step, Fields(script_, rests), true));
        return;
      }
      case Op::kAskRest:
        if (const auto one = One()) {
          scenario_.Ask(scenario_.Envelope(
              one->request.step_id(),
              scenario_.RestsOf({one->request.request_id()}), true));
        }
        return;
      case Op::kAskAgain:
        if (const auto one = One()) scenario_.Ask(one->request);
        return;
      case Op::kAskWhatIsMissing:
        return AskWhatIsMissing(step);
      case Op::kSend:
        return Send();
      case Op::kCancel:
        if (const auto one = One()) scenario_.Cancel(one);
        return;
      case Op::kAbort:
        return scenario_.Abort(step);
      case Op::kEnd:
        return scenario_.End(step);
      case Op::kEndSomehow:
        return EndSomehow(step);
      case Op::kTick:
        return Tick();
      case Op::kProfile:
        return scenario_.Profile(what & 16);
      case Op::kReceive:
      case Op::kReceiveParts:
        return Receives(script_, &errors_)
            .Run(&scenario_, step, ops_[what % 16] == Op::kReceiveParts);
    }
  }

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
    query.set_frame_version(3);
    const int64_t id =
        chosen == nullptr ? script_->Byte() : chosen->request.request_id();
    if (id % 2 == 0) {
      query.set_stalled_request_id(id);
    } else {
      query.set_awaited_request_id(id);
    }
    scenario_.Ask(scenario_.Envelope(step, query.SerializeAsString()));
  }
  void Tick() {
    if (const auto one = One()) scenario_.Tick(one->request.request_id());
  }
  void EndSomehow(int64_t step) {
    const uint8_t how = script_->Byte();
    switch (how % 8) {
      case 0:
        return scenario_.Abort(step);
      case 1:
        return scenario_.CancelParts(step);
      case 2:
        return scenario_.End(step);
      case 3:
        return Tick();
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

  Script* const script_;
  const Ops& ops_;
  Scenario scenario_;
  int errors_ = 0;
};

}  // namespace

void RunPlainScript(Script* script) { Runner(script, kPlainOps).Run(); }
void RunPartsScript(Script* script) { Runner(script, kPartsOps).Run(); }

}  // namespace testing
}  // namespace tf_fuse
