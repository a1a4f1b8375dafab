// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/reduce/point_to_point.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/borrowed_tensor.h"
#include "collectives/reduce/choose_algorithm.h"
#include "collectives/reduce/exchange_state.h"
#include "collectives/remote_access/awaited_members.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fuse {

using tensorflow::CollectiveContext;
using tensorflow::Tensor;

namespace {

absl::Time DeadlineOf(const CollectiveContext& context) {
  const float seconds = OwnTimeoutSeconds(context.col_params->instance);
  return seconds > 0 ? absl::Now() + absl::Seconds(seconds)
                     : absl::InfiniteFuture();
}

// A member that only waits for others to take what it has posted hears nothing
// of one that died. So after a while without news it asks.
constexpr absl::Duration kHealthInterval = absl::Seconds(2);
// How long others may take to say whom they wait for, when the time is over;
// less than TensorFlow waits for this error (TakeOverTimeout).
constexpr absl::Duration kAnswerTime = absl::Seconds(2);

// Of executors that are TensorFlow's own.
Operands* OperandsOfProcess() {
  static Operands* operands = new Operands;
  return operands;
}

bool IsCancelled(const CollectiveContext& context) {
  tensorflow::CancellationManager* manager =
      context.op_ctx->cancellation_manager();
  // In this order: while both are read, one that is under way may end, when the
  // second becomes true as the first becomes false.
  return manager != nullptr &&
         (manager->IsCancelling() || manager->IsCancelled());
}

// Returns when a cancellation that is under way has called all callbacks.
void WaitForCancellation(const CollectiveContext& context) {
  tensorflow::CancellationManager* manager =
      context.op_ctx->cancellation_manager();
  if (manager == nullptr) return;
  // Of no callback: what waits is the same.
  manager->DeregisterCallback(manager->get_cancellation_token());
}

}  // namespace

DirectExchange::DirectExchange(std::shared_ptr<CollectiveContext> context,
                               std::string operand)
    : context_(std::move(context)),
      operand_(std::move(operand)),
      access_(FuseRemoteAccess::From(context_->col_exec->remote_access())),
      operands_(access_ == nullptr ? OperandsOfProcess() : access_->operands()),
      collective_(access_ == nullptr ? absl::StrCat(context_->exec_key, ":",
                                                    reinterpret_cast<uintptr_t>(
                                                        context_->col_exec))
                                     : context_->exec_key),
      piece_bytes_(PieceBytes(context_->col_params->group)),
      state_(std::make_shared<ExchangeState>()),
      deadline_(DeadlineOf(*context_)) {
  const absl::Status alike =
      operands_->Announce(collective_, operand_, context_->device_name);
  if (!alike.ok()) Fail(alike);
  waits_ = RegisterWaits(context_->exec_key, context_->device_name,
                         [state = state_] { return state->Late(); });
}

DirectExchange::~DirectExchange() {
  operands_->Retract(collective_, context_->device_name);
}

std::string DirectExchange::Key(const std::string& name, int from,
                                int to) const {
  return absl::StrCat(context_->exec_key, ":tf_fuse:", name, ":", from, ":",
                      to);
}

ChunkKey DirectExchange::ChunkOf(int from, const std::string& name,
                                 int64_t bytes) const {
  ChunkKey chunk;
  chunk.key = Key(name, from, rank());
  chunk.bytes = static_cast<uint64_t>(bytes);
  chunk.collective = collective_;
  chunk.operand = operand_;
  chunk.consumer = context_->device_name;
  return chunk;
}

std::string DirectExchange::NameOf(int member) const {
  return absl::StrCat("member ", member, " (",
                      params().group.members[member].device.name(), ")");
}

absl::Status DirectExchange::Named(const absl::Status& status,
                                   int member) const {
  return FromMember(status, absl::StrCat(NameOf(member), " of ", size()));
}

void DirectExchange::Post(int to, const std::string& name,
                          const Tensor& tensor) {
  {
    absl::MutexLock lock(&state_->mu);
    if (!state_->status.ok()) return;
    ++state_->posts;
    state_->consumers.insert(to);
  }
  // A sender that a dead peer holds up may need it longer than the operation
  // lives.
  auto posted = std::make_shared<const Tensor>(tensor);
  const tensorflow::CollGroupMember& member = params().group.members[to];
  context_->col_exec->remote_access()->PostToPeer(
      member.device.name(), member.task, Key(name, rank(), to),
      context_->device, context_->op_ctx->op_device_context(),
      tensorflow::AllocatorAttributes(), posted.get(),
      context_->device_locality, context_->op_ctx->cancellation_manager(),
      [posted, to, state = state_](const absl::Status& status) {
        absl::MutexLock lock(&state->mu);
        state->NotePost(to, status);
      });
}

bool DirectExchange::BeginTake(int from) {
  absl::MutexLock lock(&state_->mu);
  if (!state_->status.ok()) return false;
  ++state_->takes;
  state_->producers.insert(from);
  return true;
}

void DirectExchange::Take(int from, const std::string& name, char* destination,
                          int64_t bytes, bool* came) {
  if (!BeginTake(from)) return;
  auto done = [this, from, came, state = state_](const absl::Status& status) {
    const absl::Status named = Named(status, from);
    absl::MutexLock lock(&state->mu);
    *came = status.ok();
    state->NoteTake(from, named);
  };
  const ChunkKey chunk = ChunkOf(from, name, bytes);
  if (Reaches(from)) {
    access_->Take(params().group.members[from], chunk, destination,
                  context_->op_ctx->cancellation_manager(), std::move(done));
    return;
  }
  auto to = std::make_shared<Tensor>(BorrowedTensor(destination, bytes));
  TakeByStock(from, chunk, to.get(),
              [to, done = std::move(done)](const absl::Status& status) {
                done(status);
              });
}

void DirectExchange::Borrow(int from, const std::string& name, int64_t bytes,
                            Borrowed* borrowed) {
  if (!BeginTake(from)) return;
  auto done = [this, from, borrowed,
               state = state_](absl::StatusOr<ChunkLoan> loan) {
    const absl::Status named = Named(loan.status(), from);
    absl::MutexLock lock(&state->mu);
    borrowed->came = loan.ok();
    if (loan.ok()) borrowed->loan = *std::move(loan);
    state->NoteTake(from, named);
  };
  const ChunkKey chunk = ChunkOf(from, name, bytes);
  if (Reaches(from)) {
    access_->Borrow(params().group.members[from], chunk,
                    context_->op_ctx->cancellation_manager(), std::move(done));
    return;
  }
  auto to = std::make_shared<Tensor>(tensorflow::DT_UINT8,
                                     tensorflow::TensorShape({bytes}));
  TakeByStock(from, chunk, to.get(),
              [to, done = std::move(done)](const absl::Status& status) {
                if (!status.ok()) return done(status);
                done(ChunkLoan(static_cast<const char*>(to->data()), [to] {}));
              });
}

bool DirectExchange::Reaches(int member) const {
  return access_ != nullptr &&
         FuseRemoteAccess::Reaches(params().group.members[member]);
}

void DirectExchange::TakeByStock(int from, const ChunkKey& chunk, Tensor* to,
                                 ChunkDone done) {
  const tensorflow::CollGroupMember& member = params().group.members[from];
  if (member.is_local) {
    const absl::Status alike = operands_->Compare(
        collective_, operand_, chunk.consumer, member.device.name());
    if (!alike.ok()) return done(alike);
  }
  context_->col_exec->remote_access()->RecvFromPeer(
      member.device.name(), member.task, member.is_local, chunk.key,
      context_->device, context_->op_ctx->op_device_context(),
      tensorflow::AllocatorAttributes(), to, context_->device_locality,
      /*dev_to_dev_stream_index=*/0, context_->op_ctx->cancellation_manager(),
      done);
}

bool DirectExchange::Came(const bool* came) {
  absl::MutexLock lock(&state_->mu);
  return *came;
}

bool DirectExchange::Intact(const ChunkLoan& loan, int from) {
  if (loan.intact()) return true;
  Fail(Named(LostLoanError(), from));
  return false;
}

bool DirectExchange::RunUntil(const std::function<bool()>& look) {
  uint64_t seen = 0;
  while (true) {
    {
      absl::MutexLock lock(&state_->mu);
      if (!state_->status.ok()) break;
      seen = state_->events;
    }
    if (look()) return true;
    bool nothing = false;
    {
      absl::MutexLock lock(&state_->mu);
      const absl::Time until =
          std::min(deadline_, absl::Now() + kHealthInterval);
      bool late = false;
      while (state_->events == seen && state_->status.ok() && !late) {
        late = state_->changed.WaitWithDeadline(&state_->mu, until);
      }
      nothing = state_->events == seen && state_->status.ok();
    }
    if (!nothing) continue;
    if (absl::Now() < deadline_) {
      CheckMembers();
      continue;
    }
    if (!is_over_) {
      is_over_ = true;
      deadline_ = absl::Now() + kAnswerTime;
      AskWhomTheyWaitFor();
      continue;
    }
    Fail(absl::DeadlineExceededError(
        absl::StrCat("Collective has timed out during execution; it waited "
                     "for ",
                     WaitedFor())));
  }
  Fail(absl::OkStatus());
  return false;
}

bool DirectExchange::WaitForPosts() {
  return RunUntil([this] {
    absl::MutexLock lock(&state_->mu);
    return state_->posts == 0;
  });
}

void DirectExchange::Fail(const absl::Status& status) {
  state_->Note(status);
  absl::Status first;
  {
    absl::MutexLock lock(&state_->mu);
    first = state_->status;
  }
  // Ends what is under way, and reports it to members that ask. A cancelled
  // operation has cancelled it already.
  if (!first.ok() && !IsCancelled(*context_)) {
    context_->col_exec->StartAbort(first);
  }
}

absl::Status DirectExchange::Finish() {
  WaitForPosts();
  state_->asking.StartCancel();
  absl::Status status;
  {
    absl::MutexLock lock(&state_->mu);
    // They were asked to end, or have ended.
    auto ended = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return state_->takes == 0;
    };
    state_->mu.Await(absl::Condition(&ended));
    status = state_->status;
  }
  // TensorFlow aborts all collectives when one fails whose operation is not
  // cancelled, and asks in the order that IsCancelled() must not.
  if (!status.ok()) WaitForCancellation(*context_);
  return status;
}

}  // namespace tf_fuse
