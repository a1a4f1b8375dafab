// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "transport/sender/partial_sends.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/metrics.h"
#include "transport/step/step_rendezvous.h"
#include "transport/watch/recv_trace.h"

namespace tf_fuse {

using tensorflow::Rendezvous;

namespace {

// The indices of failed tensors travel in the header of an error, which is
// small. The others fail the next request.
constexpr size_t kMaxFailedRanges = 100;

}  // namespace

class PartialSends::Tensor {
 public:
  Tensor(std::shared_ptr<const Asked> request, size_t index)
      : request(std::move(request)), index(index) {
    Metrics::Get()->partial_tensors.fetch_add(1);
  }
  ~Tensor() { Metrics::Get()->partial_tensors.fetch_sub(1); }

  enum class State {
    kNew,
    kWaiting,
    kHere,
    kFailed,
    kDropped,
  };

  const std::shared_ptr<const Asked> request;
  const size_t index;
  State state = State::kNew;
  Slot slot;
  Rendezvous::Args send_args;
  absl::Status status;
  int64_t arrived_ns = 0;
  // The request that waits for it; null if none does.
  std::shared_ptr<Asker> asker;
  // While it is here and nobody asks: the step must not go, as it does not
  // while TensorFlow keeps a tensor for a receiver to come.
  tsl::core::RefCountPtr<Rendezvous> step;
};

const Rendezvous::ParsedKey& PartialSends::KeyOf(const Tensor& tensor) {
  return tensor.request->keys->keys[tensor.index];
}

absl::Status PartialSends::Open(std::shared_ptr<const Asked> request,
                                const std::shared_ptr<Asker>& asker,
                                Tensors* tensors) {
  // The asker holds a reference to the step, so these may go.
  std::vector<tsl::core::RefCountPtr<Rendezvous>> references;
  bool any_ended = false;
  {
    absl::MutexLock lock(&mu_);
    if (!status_.ok()) return status_;
    const ParsedKeys& keys = *request->keys;
    uint64_t count = keys.keys.size();
    for (const int64_t request_id : keys.rest_of_requests) {
      const auto rest = rests_.find(request_id);
      if (rest != rests_.end()) count += rest->second.size();
    }
    // One answer could not hold them.
    if (count > kLimitOfKeysPerRequest) {
      return absl::InvalidArgumentError(absl::StrCat(
          "FuseRecvTensorRequest: ", count, " tensors with those that ",
          keys.rest_of_requests.size(), " answers left, at most ",
          kLimitOfKeysPerRequest, " are served"));
    }
    for (const int64_t request_id : keys.rest_of_requests) {
      auto rest = rests_.extract(request_id);
      if (rest.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "FuseRecvTensorRequest: the rest of request ", request_id,
            " was asked for, but no answer of this step left one"));
      }
      tensors->insert(tensors->end(), rest.mapped().begin(),
                      rest.mapped().end());
    }
    for (size_t i = 0; i < keys.keys.size(); ++i) {
      tensors->push_back(std::make_shared<Tensor>(request, i));
    }
    for (const auto& tensor : *tensors) {
      tensor->asker = asker;
      references.push_back(std::move(tensor->step));
      any_ended = any_ended || tensor->state == Tensor::State::kHere ||
                  tensor->state == Tensor::State::kFailed;
    }
  }
  if (any_ended) asker->Wake();
  return absl::OkStatus();
}

void PartialSends::Start(const Tensors& tensors) {
  Tensors waiting;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& tensor : tensors) {
      if (tensor->state != Tensor::State::kNew) continue;
      tensor->state = Tensor::State::kWaiting;
      waiting.push_back(tensor);
    }
  }
  for (const auto& tensor : waiting) {
    step_->RecvLocalAsync(
        KeyOf(*tensor),
        [self = shared_from_this(), tensor](
            const absl::Status& status, const Rendezvous::Args& send_args,
            const Rendezvous::Args& /*recv_args*/,
            const tensorflow::Tensor& value, const bool is_dead) {
          self->Arrive(tensor, status, send_args, value, is_dead);
        });
  }
}

void PartialSends::Arrive(const std::shared_ptr<Tensor>& tensor,
                          const absl::Status& status,
                          const Rendezvous::Args& args,
                          const tensorflow::Tensor& value, bool is_dead) {
  std::shared_ptr<Asker> asker;
  {
    absl::MutexLock lock(&mu_);
    if (tensor->state == Tensor::State::kDropped) return;
    tensor->status = status.ok() ? status_ : status;
    if (tensor->status.ok()) {
      tensor->state = Tensor::State::kHere;
      tensor->slot.tensor = value;
      tensor->slot.is_dead = is_dead;
      tensor->send_args = args;
      if (tensor->asker == nullptr) {
        tensor->step = tsl::core::GetNewRef(step_);
      } else if (tensor->asker->measures_waits()) {
        tensor->arrived_ns = RecvTrace::NowNanos();
      }
    } else {
      tensor->state = Tensor::State::kFailed;
    }
    asker = tensor->asker;
  }
  if (asker != nullptr) asker->Wake();
}

PartialSends::Part PartialSends::Take(Tensors tensors) {
  Part part;
  Tensors failed;
  std::vector<std::shared_ptr<Asker>> askers;  // Released last.
  absl::MutexLock lock(&mu_);
  for (const auto& tensor : tensors) {
    askers.push_back(std::move(tensor->asker));
    tensor->asker = nullptr;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]->state != Tensor::State::kHere) continue;
    part.positions.push_back(i);
    part.slots.push_back(std::move(tensors[i]->slot));
    part.send_args.push_back(tensors[i]->send_args);
    part.arrived_ns.push_back(tensors[i]->arrived_ns);
    part.tensors.push_back(tensors[i]);
  }
  size_t ranges = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor::State state = tensors[i]->state;
    if (state == Tensor::State::kHere) continue;
    if (state == Tensor::State::kFailed && part.positions.empty()) {
      if (part.failed.empty() || part.failed.back() + 1 != i) ++ranges;
      if (ranges <= kMaxFailedRanges) {
        part.status.Update(tensors[i]->status);
        part.failed.push_back(i);
        continue;
      }
    }
    part.rest.push_back(std::move(tensors[i]));
  }
  return part;
}

void PartialSends::Keep(int64_t request_id, Tensors rest) {
  if (rest.empty()) return;
  bool kept = false;
  {
    absl::MutexLock lock(&mu_);
    // An aborted step forgets: what was left would keep it. Nor can what an
    // older request of the same id has left be replaced.
    if (status_.ok()) kept = rests_.try_emplace(request_id, rest).second;
  }
  if (!kept) Drop(rest);
}

void PartialSends::Drop(const Tensors& tensors) {
  std::vector<Slot> slots;
  std::vector<std::shared_ptr<Asker>> askers;
  std::vector<tsl::core::RefCountPtr<Rendezvous>> references;
  absl::MutexLock lock(&mu_);
  for (const auto& tensor : tensors) {
    slots.push_back(std::move(tensor->slot));
    askers.push_back(std::move(tensor->asker));
    references.push_back(std::move(tensor->step));
    tensor->state = Tensor::State::kDropped;
    tensor->asker = nullptr;
  }
}

void PartialSends::Abort(const absl::Status& status) {
  absl::flat_hash_map<int64_t, Tensors> rests;
  {
    absl::MutexLock lock(&mu_);
    status_.Update(status);
    rests.swap(rests_);
  }
  for (const auto& [request_id, tensors] : rests) Drop(tensors);
}

absl::Status PartialSends::status() {
  absl::MutexLock lock(&mu_);
  return status_;
}

}  // namespace tf_fuse
