// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// All-reduce without a ring: each member sums what it owns of all members'
// values, reading them where they lie, and takes what others own from them.
// As many bytes go to each member as in a ring, in two steps instead of
// 2(n - 1). The elements that a member owns, and the order in which it sums
// them, are those of TensorFlow's ring, so the sums are the same to the last
// bit.

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/borrowed_tensor.h"
#include "base/metrics.h"
#include "base/recycled_memory.h"
#include "collectives/reduce/choose_algorithm.h"
#include "collectives/reduce/merge_in_order.h"
#include "collectives/reduce/point_to_point.h"
#include "collectives/reduce/ring_layout.h"
#include "tensorflow/core/common_runtime/collective_util.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fuse {

using tensorflow::CollectiveContext;
using tensorflow::DMAHelper;
using tensorflow::Tensor;

namespace {

// Pieces that are asked for ahead, of each member.
constexpr size_t kAhead = 4;
// Up to so many bytes each member sends all it has to each: one step, not two.
constexpr int64_t kOneStepBytes = 16 << 10;

// A part of a field that travels at once.
struct Piece {
  int field;
  int64_t begin;
  int64_t end;
  std::string name;
};

std::vector<Piece> PiecesOf(const std::vector<RingField>& fields, int index,
                            int64_t step) {
  const RingField& field = fields[index];
  std::vector<Piece> pieces;
  for (int64_t begin = field.begin; begin < field.end; begin += step) {
    pieces.push_back({index, begin, std::min(field.end, begin + step),
                      absl::StrCat(":", begin)});
  }
  return pieces;
}

class DirectReduction {
 public:
  explicit DirectReduction(std::shared_ptr<CollectiveContext> context)
      : context_(std::move(context)),
        exchange_(
            context_,
            absl::StrCat(tensorflow::DataTypeString(context_->input->dtype()),
                         context_->input->shape().DebugString())),
        summing_(context_.get()),
        element_bytes_(tensorflow::DataTypeSize(context_->input->dtype())),
        input_(Flat(*context_->input)),
        output_(Flat(*context_->output)),
        fields_(RingFields(
            input_.NumElements(), element_bytes_,
            context_->col_params->instance.impl_details.subdiv_permutations)) {}

  absl::Status Run() {
    if (DMAHelper::base(&input_) != DMAHelper::base(&output_)) {
      AdviseHugePages(OutputAt(0), output_.TotalBytes());
    }
    if (static_cast<int64_t>(input_.TotalBytes()) <= kOneStepBytes) {
      OneStep();
    } else {
      TwoSteps();
    }
    return exchange_.Finish();
  }

 private:
  char* OutputAt(int64_t element) {
    return static_cast<char*>(DMAHelper::base(&output_)) +
           element * element_bytes_;
  }
  const char* InputAt(int64_t element) const {
    return static_cast<const char*>(DMAHelper::base(&input_)) +
           element * element_bytes_;
  }
  int Owner(const Piece& piece) const {
    return fields_[piece.field].order.back();
  }

  void OneStep() {
    // A copy: the output may be the input's memory, which others still read.
    Tensor own(input_.dtype(), input_.shape());
    std::memcpy(own.data(), input_.data(), input_.TotalBytes());
    const int n = exchange_.size();
    std::vector<Borrowed>& values = whole_;
    values = std::vector<Borrowed>(n);
    for (int member = 0; member < n; ++member) {
      if (member == exchange_.rank()) continue;
      exchange_.Post(member, "all", own);
    }
    for (int member = 0; member < n; ++member) {
      if (member == exchange_.rank()) continue;
      exchange_.Borrow(member, "all", input_.TotalBytes(), &values[member]);
    }
    for (int member = 0; member < n; ++member) {
      if (member == exchange_.rank()) continue;
      if (!exchange_.RunUntil(
              [&] { return exchange_.Came(&values[member].came); })) {
        return;
      }
    }
    for (const RingField& field : fields_) {
      std::vector<const char*> terms;
      for (int member : field.order) {
        const char* base = member == exchange_.rank()
                               ? static_cast<const char*>(own.data())
                               : values[member].loan.data();
        terms.push_back(base + field.begin * element_bytes_);
      }
      const absl::Status status =
          summing_.Merge(terms, field.end - field.begin, OutputAt(field.begin));
      if (!status.ok()) return exchange_.Fail(status);
    }
    for (int member = 0; member < n; ++member) {
      if (!exchange_.Intact(values[member].loan, member)) return;
    }
    // Loans of this process are what their producers wait for.
    whole_.clear();
  }

  void TwoSteps() {
    ListPieces();
    for (const Piece& piece : others_) {
      exchange_.Post(Owner(piece), absl::StrCat("in", piece.name),
                     input_.Slice(piece.begin, piece.end));
    }
    size_t next_own = 0;    // To sum.
    size_t next_asked = 0;  // Own pieces that were asked for.
    size_t next_take = 0;   // Others' results.
    std::deque<bool>& taken = taken_;
    taken.resize(others_.size(), false);
    size_t first_missing = 0;
    const size_t ahead = kAhead * static_cast<size_t>(exchange_.size());
    exchange_.RunUntil([&] {
      while (true) {
        for (; next_asked < own_.size() && next_asked < next_own + kAhead;
             ++next_asked) {
          Ask(next_asked);
        }
        while (first_missing < next_take &&
               exchange_.Came(&taken[first_missing])) {
          ++first_missing;
        }
        for (; next_take < others_.size() && next_take < first_missing + ahead;
             ++next_take) {
          const Piece& piece = others_[next_take];
          exchange_.Take(Owner(piece), absl::StrCat("out", piece.name),
                         OutputAt(piece.begin),
                         (piece.end - piece.begin) * element_bytes_,
                         &taken[next_take]);
        }
        if (next_own == own_.size() || !HaveCome(next_own)) break;
        if (!Sum(next_own)) return false;
        ++next_own;
      }
      return next_own == own_.size() && first_missing == others_.size();
    });
  }

  // Own pieces, and those of others: round robin by owner, so that all of them
  // are busy.
  void ListPieces() {
    std::vector<std::vector<Piece>> by_owner(exchange_.size());
    for (size_t i = 0; i < fields_.size(); ++i) {
      std::vector<Piece> pieces =
          PiecesOf(fields_, static_cast<int>(i),
                   exchange_.piece_bytes() / element_bytes_);
      std::vector<Piece>& list = by_owner[fields_[i].order.back()];
      list.insert(list.end(), pieces.begin(), pieces.end());
    }
    own_ = std::move(by_owner[exchange_.rank()]);
    by_owner[exchange_.rank()].clear();
    terms_.resize(own_.size());
    for (size_t k = 0;; ++k) {
      const size_t before = others_.size();
      for (int i = 1; i < exchange_.size(); ++i) {
        // Each member begins with another one.
        const int owner = (exchange_.rank() + i) % exchange_.size();
        if (k < by_owner[owner].size()) others_.push_back(by_owner[owner][k]);
      }
      if (others_.size() == before) break;
    }
  }

  void Ask(size_t index) {
    const Piece& piece = own_[index];
    const std::vector<int>& order = fields_[piece.field].order;
    terms_[index] = std::make_unique<std::vector<Borrowed>>(order.size());
    for (size_t k = 0; k + 1 < order.size(); ++k) {
      exchange_.Borrow(order[k], absl::StrCat("in", piece.name),
                       (piece.end - piece.begin) * element_bytes_,
                       &(*terms_[index])[k]);
    }
  }

  bool HaveCome(size_t index) {
    const std::vector<Borrowed>& terms = *terms_[index];
    for (size_t k = 0; k + 1 < terms.size(); ++k) {
      if (!exchange_.Came(&terms[k].came)) return false;
    }
    return true;
  }

  bool Sum(size_t index) {
    const Piece& piece = own_[index];
    std::vector<const char*> values;
    for (const Borrowed& term : *terms_[index]) {
      values.push_back(term.loan.data());
    }
    values.back() = InputAt(piece.begin);
    const absl::Status status =
        summing_.Merge(values, piece.end - piece.begin, OutputAt(piece.begin));
    const std::vector<int>& order = fields_[piece.field].order;
    bool intact = true;
    for (size_t k = 0; k + 1 < order.size(); ++k) {
      intact = exchange_.Intact((*terms_[index])[k].loan, order[k]) && intact;
    }
    terms_[index]->clear();  // Gives the loans back.
    if (!status.ok()) exchange_.Fail(status);
    if (!status.ok() || !intact) return false;
    const Tensor result = output_.Slice(piece.begin, piece.end);
    for (int i = 1; i < exchange_.size(); ++i) {
      exchange_.Post((exchange_.rank() + i) % exchange_.size(),
                     absl::StrCat("out", piece.name), result);
    }
    return true;
  }

  const std::shared_ptr<CollectiveContext> context_;
  DirectExchange exchange_;
  Summing summing_;
  const int64_t element_bytes_;
  const Tensor input_;
  Tensor output_;
  const std::vector<RingField> fields_;
  std::vector<Piece> own_;
  std::vector<Piece> others_;
  // Callbacks write to these until the exchange is finished.
  std::vector<Borrowed> whole_;
  std::deque<bool> taken_;
  std::vector<std::unique_ptr<std::vector<Borrowed>>> terms_;  // Of own_.
};

class DirectReduce : public tensorflow::CollectiveImplementationInterface {
 public:
  // Those of the ring, which this replaces, were made.
  absl::Status InitializeCollectiveParams(
      tensorflow::CollectiveParams* params) override {
    return absl::OkStatus();
  }

  absl::Status InitializeCollectiveContext(
      std::shared_ptr<CollectiveContext> context) override {
    context_ = std::move(context);
    return tensorflow::collective_util::InitializeDeviceAndLocality(
        context_->dev_mgr, context_->device_name, &context_->device,
        &context_->device_locality);
  }

  void Run(tensorflow::StatusCallback done) override {
    Metrics::Get()->direct_collectives.fetch_add(1);
    absl::Status status;
    {
      DirectReduction reduction(context_);
      status = reduction.Run();
    }
    done(status);
  }

 private:
  std::shared_ptr<CollectiveContext> context_;
};

const tensorflow::CollectiveRegistration kRegistration(kDirectReduce, [] {
  return new DirectReduce;
});

}  // namespace

}  // namespace tf_fuse
