// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Posts the pieces of one member of a collective for the others, and takes
// theirs. Used by one thread, which waits; what ends on other threads is noted.

#ifndef TF_FUSE_CC_COLLECTIVES_REDUCE_POINT_TO_POINT_H_
#define TF_FUSE_CC_COLLECTIVES_REDUCE_POINT_TO_POINT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "channel/chunk.h"
#include "collectives/remote_access/remote_access.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_fuse {

// A piece of another member that is read where it lies.
struct Borrowed {
  bool came = false;
  ChunkLoan loan;
};

struct ExchangeState;

class DirectExchange {
 public:
  // `operand` is what this member puts in, as text; all must put in the same.
  DirectExchange(std::shared_ptr<tensorflow::CollectiveContext> context,
                 std::string operand);
  // Posts and takes that are under way hold what they need.
  ~DirectExchange();

  int rank() const { return params().default_rank; }
  int size() const { return params().group.group_size; }
  // The size of pieces that tensors are cut into; all members cut alike.
  int64_t piece_bytes() const { return piece_bytes_; }
  const tensorflow::CollectiveParams& params() const {
    return *context_->col_params;
  }

  // Makes `tensor` available to member `to` under `name`; it is not changed
  // until Finish().
  void Post(int to, const std::string& name, const tensorflow::Tensor& tensor);

  // Takes what member `from` posts for this one under `name`.
  void Take(int from, const std::string& name, char* destination, int64_t bytes,
            bool* came);
  void Borrow(int from, const std::string& name, int64_t bytes,
              Borrowed* borrowed);

  // Runs `look` again and again, whenever something may have come, until it
  // says that it is done. False if the collective has failed.
  bool RunUntil(const std::function<bool()>& look);
  bool WaitForPosts();

  // What has come may be read after this.
  bool Came(const bool* came);
  // Whether what was read of a loan is what the member lent; else the
  // collective has failed.
  bool Intact(const ChunkLoan& loan, int from);

  // Lets the collective fail.
  void Fail(const absl::Status& status);

  // Waits for what must end before the memory of the operation may be used
  // otherwise; returns how the collective went.
  absl::Status Finish();

 private:
  // Notes a take that begins; false if the collective has failed.
  bool BeginTake(int from);
  bool Reaches(int member) const;
  // By TensorFlow's remote access, where the executor is not ours.
  void TakeByStock(int from, const ChunkKey& chunk, tensorflow::Tensor* to,
                   ChunkDone done);
  std::string Key(const std::string& name, int from, int to) const;
  ChunkKey ChunkOf(int from, const std::string& name, int64_t bytes) const;
  std::string NameOf(int member) const;
  absl::Status Named(const absl::Status& status, int member) const;
  // What to say of those that are waited for when the time is over.
  std::string WaitedFor() const;
  // Asks the tasks that are waited for whether they live, and all others
  // whether they have failed.
  void CheckMembers();
  // Takes from a member what it never posts: it answers when its collectives
  // are aborted. Who waits only for it to take something, or for another one,
  // would not hear of that.
  void AskWhetherFailed(int member);
  // Asks all others whom they wait for.
  void AskWhomTheyWaitFor();
  // Those that are waited for, here or by those that are, and were asked whom
  // they wait for, and have not said.
  std::set<int> Silent() const;

  const std::shared_ptr<tensorflow::CollectiveContext> context_;
  const std::string operand_;
  FuseRemoteAccess* const access_;  // Null: TensorFlow's own.
  Operands* const operands_;
  const std::string collective_;
  const int64_t piece_bytes_;
  const std::shared_ptr<ExchangeState> state_;
  absl::Time deadline_;
  bool is_over_ = false;  // The time; answers are waited for.
  std::set<int> questioned_;
  std::shared_ptr<void> waits_;  // Whom this member waits for, for others.
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REDUCE_POINT_TO_POINT_H_
