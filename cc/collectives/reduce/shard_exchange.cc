// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/reduce/shard_exchange.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/reduce/merge_in_order.h"
#include "collectives/reduce/point_to_point.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/lib/hash/hash.h"

namespace tf_fuse {

using tensorflow::CollectiveContext;
using tensorflow::DMAHelper;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

constexpr size_t kShardPiecesAhead =
    4;  // Pieces that are asked for, of each member.

// Elements of one tensor; a piece has those of several where they are few.
struct Range {
  size_t tensor;
  int64_t begin;
  int64_t end;
};
struct ShardPiece {
  std::vector<Range> ranges;
  int64_t elements = 0;
};

// What a member sums, or what it holds.
using Ranges = ShardRange (ShardLayout::*)(size_t tensor, int member) const;

// What is `rank`'s, in pieces.
std::vector<ShardPiece> ShardPiecesOf(const ShardLayout& layout, Ranges ranges,
                                      const DirectExchange& exchange,
                                      int rank) {
  const int64_t room = exchange.piece_bytes() / layout.element_bytes();
  std::vector<ShardPiece> pieces;
  for (size_t i = 0; i < layout.sizes().size(); ++i) {
    ShardRange shard = (layout.*ranges)(i, rank);
    while (shard.begin < shard.end) {
      if (pieces.empty() || pieces.back().elements == room) {
        pieces.emplace_back();
      }
      ShardPiece& piece = pieces.back();
      const int64_t n =
          std::min(shard.end - shard.begin, room - piece.elements);
      piece.ranges.push_back({i, shard.begin, shard.begin + n});
      piece.elements += n;
      shard.begin += n;
    }
  }
  return pieces;
}

// The tensors' sizes as text; of many tensors, their number and a fingerprint.
std::string Describe(const char* what, tensorflow::DataType type,
                     const ShardLayout& layout) {
  constexpr size_t kMost = 8;
  const std::vector<int64_t>& sizes = layout.sizes();
  std::string text =
      absl::StrCat(what, layout.packed() ? " of a pack" : "", " of ",
                   tensorflow::DataTypeString(type), " [");
  if (layout.groups() > 1) {
    text = absl::StrCat("in ", layout.groups(), " groups: ", text);
  }
  for (size_t i = 0; i < std::min(sizes.size(), kMost); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", sizes[i]);
  }
  absl::StrAppend(&text, sizes.size() > kMost ? ", ...]" : "]");
  if (sizes.size() > kMost) {
    absl::StrAppend(
        &text, " (", sizes.size(), " tensors, fingerprint ",
        tensorflow::Hash64(reinterpret_cast<const char*>(sizes.data()),
                           sizes.size() * sizeof(sizes[0])),
        ")");
  }
  const std::vector<int64_t>& bounds = layout.bounds();
  if (!bounds.empty()) {
    absl::StrAppend(
        &text, ", cut at ",
        tensorflow::Hash64(reinterpret_cast<const char*>(bounds.data()),
                           bounds.size() * sizeof(bounds[0])));
  }
  return text;
}

char* At(const Tensor& tensor, int64_t element, int64_t element_bytes) {
  return static_cast<char*>(const_cast<void*>(DMAHelper::base(&tensor))) +
         element * element_bytes;
}

// One tensor with the piece's elements: a view, or packed where it has several
// ranges. `offsets` is where each tensor's first element is in the ranges'
// numbers.
Tensor Pack(const ShardPiece& piece, const std::vector<Tensor>& tensors,
            const std::vector<int64_t>& offsets, int64_t element_bytes) {
  if (piece.ranges.size() == 1) {
    const Range& range = piece.ranges[0];
    return tensors[range.tensor].Slice(range.begin - offsets[range.tensor],
                                       range.end - offsets[range.tensor]);
  }
  Tensor packed(tensors[0].dtype(), TensorShape({piece.elements}));
  int64_t done = 0;
  for (const Range& range : piece.ranges) {
    const int64_t n = range.end - range.begin;
    std::memcpy(At(packed, done, element_bytes),
                At(tensors[range.tensor], range.begin - offsets[range.tensor],
                   element_bytes),
                n * element_bytes);
    done += n;
  }
  return packed;
}

std::string Name(const char* phase, size_t piece) {
  return absl::StrCat(phase, piece);
}

class Scatter {
 public:
  Scatter(const std::shared_ptr<CollectiveContext>& context,
          const ShardLayout& layout, const std::vector<Tensor>& inputs,
          std::vector<Tensor>* shards)
      : layout_(layout),
        inputs_(inputs),
        shards_(shards),
        element_bytes_(layout.element_bytes()),
        exchange_(context,
                  Describe("reduce-scatter", inputs[0].dtype(), layout)),
        summing_(context.get()) {}

  absl::Status Run() {
    const int n = exchange_.size();
    const int rank = exchange_.rank();
    const std::vector<int64_t> from_zero(inputs_.size(), 0);
    own_ = ShardPiecesOf(layout_, &ShardLayout::SummedBy, exchange_, rank);
    for (int i = 1; i < n; ++i) {
      const int to = (rank + i) % n;
      const std::vector<ShardPiece> pieces =
          ShardPiecesOf(layout_, &ShardLayout::SummedBy, exchange_, to);
      for (size_t k = 0; k < pieces.size(); ++k) {
        exchange_.Post(to, Name("rs", k),
                       Pack(pieces[k], inputs_, from_zero, element_bytes_));
      }
    }
    // Of each own piece, what each other member has of it, by how far its rank
    // is from this one.
    std::vector<std::vector<Borrowed>> terms(own_.size());
    size_t asked = 0;
    for (size_t next = 0; next < own_.size(); ++next) {
      for (; asked < std::min(own_.size(), next + kShardPiecesAhead); ++asked) {
        Ask(asked, &terms[asked]);
      }
      if (!exchange_.RunUntil([&] { return HaveCome(terms[next]); })) break;
      const absl::Status status = Sum(own_[next], terms[next]);
      bool intact = true;
      for (int i = 1; i < n; ++i) {
        intact =
            exchange_.Intact(terms[next][i].loan, (rank + i) % n) && intact;
      }
      terms[next].clear();
      if (!status.ok()) exchange_.Fail(status);
      if (!status.ok() || !intact) break;
    }
    return exchange_.Finish();
  }

 private:
  void Ask(size_t index, std::vector<Borrowed>* terms) {
    const int n = exchange_.size();
    *terms = std::vector<Borrowed>(n);
    for (int i = 1; i < n; ++i) {
      exchange_.Borrow((exchange_.rank() + i) % n, Name("rs", index),
                       own_[index].elements * element_bytes_, &(*terms)[i]);
    }
  }

  bool HaveCome(const std::vector<Borrowed>& terms) {
    for (size_t i = 1; i < terms.size(); ++i) {
      if (!exchange_.Came(&terms[i].came)) return false;
    }
    return true;
  }

  absl::Status Sum(const ShardPiece& piece,
                   const std::vector<Borrowed>& terms) {
    const int members = exchange_.size();
    const int from = layout_.FirstTermOf(exchange_.rank());
    int64_t done = 0;
    for (const Range& range : piece.ranges) {
      const int64_t n = range.end - range.begin;
      // The ring's chunk r begins at rank r.
      std::vector<const char*> values;
      for (int i = 0; i < members; ++i) {
        const int term = (from - exchange_.rank() + i + members) % members;
        values.push_back(
            term == 0 ? At(inputs_[range.tensor], range.begin, element_bytes_)
                      : terms[term].loan.data() + done * element_bytes_);
      }
      const int64_t first = layout_.Of(range.tensor, exchange_.rank()).begin;
      const absl::Status status = summing_.Merge(
          values, n,
          At((*shards_)[range.tensor], range.begin - first, element_bytes_));
      if (!status.ok()) return status;
      done += n;
    }
    return absl::OkStatus();
  }

  const ShardLayout& layout_;
  const std::vector<Tensor>& inputs_;
  std::vector<Tensor>* const shards_;
  const int64_t element_bytes_;
  DirectExchange exchange_;
  Summing summing_;
  std::vector<ShardPiece> own_;
};

// How members share tensors: each member gets what the others have.
struct Sharing {
  std::vector<int> members;         // From this one on.
  Ranges ranges;                    // What each of them has.
  const std::vector<Tensor>& from;  // What this one has is in these,
  std::vector<int64_t> first_from;  // whose first elements are these.
  std::vector<Tensor>* to;          // And goes with all others to these,
  std::vector<int64_t> first_to;    // whose first elements are these.
};

class Gather {
 public:
  Gather(const std::shared_ptr<CollectiveContext>& context, const char* what,
         const ShardLayout& layout, Sharing sharing)
      : layout_(layout),
        sharing_(std::move(sharing)),
        element_bytes_(layout.element_bytes()),
        exchange_(context, Describe(what, sharing_.from[0].dtype(), layout)) {}

  absl::Status Run() {
    PostOwn();
    std::vector<Wanted> wanted;
    for (size_t i = 1; i < sharing_.members.size(); ++i) {
      const int from = sharing_.members[i];
      std::vector<ShardPiece> pieces =
          ShardPiecesOf(layout_, sharing_.ranges, exchange_, from);
      for (size_t k = 0; k < pieces.size(); ++k) {
        wanted.push_back({from, k, std::move(pieces[k])});
      }
    }
    // Round robin, so that all members are busy.
    std::stable_sort(
        wanted.begin(), wanted.end(),
        [](const Wanted& a, const Wanted& b) { return a.index < b.index; });
    std::vector<Borrowed> borrowed(wanted.size());
    std::deque<bool> taken(wanted.size(), false);
    size_t asked = 0;
    size_t done = 0;
    const size_t ahead = kShardPiecesAhead * sharing_.members.size();
    CopyOwn();
    exchange_.RunUntil([&] {
      while (true) {
        for (; asked < std::min(wanted.size(), done + ahead); ++asked) {
          Ask(wanted[asked], &borrowed[asked], &taken[asked]);
        }
        if (done == wanted.size()) return true;
        if (wanted[done].piece.ranges.size() == 1
                ? !exchange_.Came(&taken[done])
                : !exchange_.Came(&borrowed[done].came)) {
          return false;
        }
        if (wanted[done].piece.ranges.size() > 1) {
          ChunkLoan& loan = borrowed[done].loan;
          Unpack(wanted[done].piece, loan.data());
          if (!exchange_.Intact(loan, wanted[done].from)) return false;
          loan.GiveBack();
        }
        ++done;
      }
    });
    return exchange_.Finish();
  }

 private:
  struct Wanted {
    int from;
    size_t index;
    ShardPiece piece;
  };

  void PostOwn() {
    const std::vector<ShardPiece> pieces =
        ShardPiecesOf(layout_, sharing_.ranges, exchange_, exchange_.rank());
    for (size_t k = 0; k < pieces.size(); ++k) {
      const Tensor packed =
          Pack(pieces[k], sharing_.from, sharing_.first_from, element_bytes_);
      for (size_t i = 1; i < sharing_.members.size(); ++i) {
        exchange_.Post(sharing_.members[i], Name("ag", k), packed);
      }
    }
  }

  // An element of a tensor, where it goes to.
  char* To(size_t tensor, int64_t element) {
    return At((*sharing_.to)[tensor], element - sharing_.first_to[tensor],
              element_bytes_);
  }

  void CopyOwn() {
    for (size_t i = 0; i < layout_.sizes().size(); ++i) {
      const ShardRange own = (layout_.*sharing_.ranges)(i, exchange_.rank());
      if (own.begin == own.end) continue;
      const char* const from = At(
          sharing_.from[i], own.begin - sharing_.first_from[i], element_bytes_);
      char* const to = To(i, own.begin);
      if (from == to) continue;
      std::memcpy(to, from, (own.end - own.begin) * element_bytes_);
    }
  }

  void Ask(const Wanted& wanted, Borrowed* borrowed, bool* taken) {
    const int64_t bytes = wanted.piece.elements * element_bytes_;
    const std::string name = Name("ag", wanted.index);
    if (wanted.piece.ranges.size() > 1) {
      exchange_.Borrow(wanted.from, name, bytes, borrowed);
      return;
    }
    const Range& range = wanted.piece.ranges[0];
    exchange_.Take(wanted.from, name, To(range.tensor, range.begin), bytes,
                   taken);
  }

  void Unpack(const ShardPiece& piece, const char* data) {
    for (const Range& range : piece.ranges) {
      const int64_t bytes = (range.end - range.begin) * element_bytes_;
      std::memcpy(To(range.tensor, range.begin), data, bytes);
      data += bytes;
    }
  }

  const ShardLayout& layout_;
  const Sharing sharing_;
  const int64_t element_bytes_;
  DirectExchange exchange_;
};

// Where what a member holds of each tensor begins.
std::vector<int64_t> FirstHeld(const ShardLayout& layout, int member) {
  std::vector<int64_t> first;
  for (size_t i = 0; i < layout.sizes().size(); ++i) {
    first.push_back(layout.Of(i, member).begin);
  }
  return first;
}

}  // namespace

absl::Status ReduceScatter(const std::shared_ptr<CollectiveContext>& context,
                           const ShardLayout& layout,
                           const std::vector<Tensor>& inputs,
                           std::vector<Tensor>* shards) {
  return Scatter(context, layout, inputs, shards).Run();
}

absl::Status ShareSums(const std::shared_ptr<CollectiveContext>& context,
                       const ShardLayout& layout, std::vector<Tensor>* shards) {
  const int rank = context->col_params->default_rank;
  const std::vector<int64_t> first = FirstHeld(layout, rank);
  return Gather(context, "sums of reduce-scatter", layout,
                {layout.HoldersOf(rank), &ShardLayout::SummedBy, *shards, first,
                 shards, first})
      .Run();
}

absl::Status AllGather(const std::shared_ptr<CollectiveContext>& context,
                       const ShardLayout& layout,
                       const std::vector<Tensor>& shards,
                       std::vector<Tensor>* outputs) {
  const int rank = context->col_params->default_rank;
  return Gather(context, "all-gather", layout,
                {layout.GroupOf(rank), &ShardLayout::Of, shards,
                 FirstHeld(layout, rank), outputs,
                 std::vector<int64_t>(layout.sizes().size(), 0)})
      .Run();
}

}  // namespace tf_fuse
