// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Calls by data channels, for channels_test and channel_fuzz: a handler that
// answers in all ways, and callers that check what comes.

#ifndef TF_FUSE_CC_TESTING_CHANNELS_CALL_CASES_H_
#define TF_FUSE_CC_TESTING_CHANNELS_CALL_CASES_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/executors.h"
#include "channel/calls/call_client.h"
#include "channel/calls/call_handler.h"
#include "channel/chunk_client.h"

namespace tf_fuse {
namespace testing {

// The first byte of a request: what becomes of it.
enum CallKind : char {
  kAnswered = 'a',      // With the request, twice.
  kElsewhere = 'e',     // The same, on another thread.
  kRefused = 'r',       // With an error that has a payload.
  kNeverAnswered = 'n'  // Until it is cancelled.
};

inline constexpr char kPayloadUrl[] = "tf_fuse.test";
inline constexpr char kRefusal[] = "refused \xff";  // An error may be no UTF-8.

class OddHandler : public CallHandler {
 public:
  void Handle(v1::CallMethod method, const std::string& request,
              tensorflow::CallOptions* options, AnswerDone done) override {
    const auto bytes = std::make_shared<const std::string>(request);
    auto answer = [bytes, done] {
      done(absl::OkStatus(), {{*bytes, "", *bytes}, bytes});
    };
    switch (request.empty() ? '?' : request[0]) {
      case kAnswered:
        return answer();
      case kElsewhere:
        return ScheduleElsewhere(answer);
      case kNeverAnswered:
        options->SetCancelCallback([done] {
          ScheduleElsewhere([done] { done(absl::CancelledError("end"), {}); });
        });
        return;
      default: {
        absl::Status status = absl::InvalidArgumentError(kRefusal);
        status.SetPayload(kPayloadUrl, absl::Cord(request));
        return done(status, {});
      }
    }
  }
};

// Makes one call, perhaps one that is cancelled. Returns what is wrong, if
// anything is. Does nothing while no channel is open.
inline std::string MakeCall(ChunkClient* client, uint64_t server,
                            std::mt19937_64* random) {
  const std::shared_ptr<CallClient> calls = client->Calls();
  if (calls == nullptr) {
    absl::SleepFor(absl::Milliseconds(1));
    return "";
  }
  constexpr char kKinds[] = {kAnswered, kAnswered, kElsewhere, kRefused,
                             kNeverAnswered};
  constexpr uint64_t kSizes[] = {1, 100, 5000, 300000};
  const char kind = kKinds[(*random)() % 5];
  std::string request(1 + (*random)() % kSizes[(*random)() % 4], '.');
  for (char& c : request) c = static_cast<char>((*random)());
  request[0] = kind;
  const bool fits = (*random)() % 16 != 0;
  const bool cancels = kind == kNeverAnswered || (*random)() % 8 == 0;
  struct Answer {
    // (ThreadSanitizer does not see absl::Notification.)
    std::mutex mu;
    std::condition_variable came;
    int times = 0;
    absl::Status status;
    std::string bytes;
  };
  const auto answer = std::make_shared<Answer>();
  const uint64_t call = calls->Start(
      server, v1::CALL_METHOD_FRAME, request,
      fits ? 2 * request.size() : 2 * request.size() - 1,
      [answer](const absl::Status& status, const tensorflow::Tensor& bytes) {
        std::lock_guard<std::mutex> lock(answer->mu);
        if (++answer->times > 1) return;
        answer->status = status;
        answer->bytes = std::string(bytes.tensor_data());
        answer->came.notify_all();
      });
  if (call == 0) return "";  // Lost just now.
  if (cancels) calls->Cancel(call);
  std::unique_lock<std::mutex> lock(answer->mu);
  if (!answer->came.wait_for(lock, std::chrono::seconds(60),
                             [&answer] { return answer->times > 0; })) {
    return absl::StrCat("a call of kind ", std::string(1, kind),
                        " is not answered");
  }
  if (answer->times != 1) return "a call is answered twice";
  const absl::Status& status = answer->status;
  const bool may_be_lost = absl::IsUnavailable(status);
  if (may_be_lost || (cancels && absl::IsCancelled(status))) return "";
  if (kind == kRefused) {
    const auto payload = status.GetPayload(kPayloadUrl);
    // (A long one is left out.)
    const bool has_payload = payload.has_value() && *payload == request;
    return absl::IsInvalidArgument(status) && status.message() == kRefusal &&
                   (has_payload || request.size() > 8000)
               ? ""
               : absl::StrCat("a refusal came as ", status.ToString());
  }
  if (!fits) {
    return absl::IsDataLoss(status)
               ? ""
               : absl::StrCat("too long an answer came as ", status.ToString());
  }
  return status.ok() && answer->bytes == absl::StrCat(request, request)
             ? ""
             : absl::StrCat("an answer of ", answer->bytes.size(),
                            " bytes to a request of ", request.size(), ": ",
                            status.ToString());
}

}  // namespace testing
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TESTING_CHANNELS_CALL_CASES_H_
