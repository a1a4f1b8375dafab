// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Computes which elements of each tensor belong to which member of a group, in
// reduce-scatter and all-gather. It is the layout of TensorFlow's ring, so both
// together are its all-reduce, to the last bit.
//
// The members may be in several groups of as many consecutive ranks. Each group
// holds everything once. Four members in two groups:
//
//   chunk of the ring   0        1        2        3
//   held by             0 and 2  0 and 2  1 and 3  1 and 3
//   summed by           0        2        1        3
//
// So each chunk is summed once, by a member that holds it, in the ring's order:
// the additions begin at the rank with the chunk's number.

#ifndef TF_FUSE_CC_COLLECTIVES_REDUCE_SHARD_LAYOUT_H_
#define TF_FUSE_CC_COLLECTIVES_REDUCE_SHARD_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tf_fuse {

// Elements of a tensor; perhaps none.
struct ShardRange {
  int64_t begin = 0;
  int64_t end = 0;
};

class ShardLayout {
 public:
  // Of tensors with so many elements each. Each is cut by itself, or, if they
  // are `packed`, all as one, in which they follow each other. `members` is a
  // multiple of `groups`.
  ShardLayout(std::vector<int64_t> sizes, int64_t element_bytes, int members,
              bool packed, int groups = 1);

  // Of tensors that the caller has cut. `bounds` has, for each tensor in turn,
  // where the members' parts begin, by rank, and where the last one ends. There
  // is one group then.
  ShardLayout(std::vector<int64_t> sizes, int64_t element_bytes, int members,
              std::vector<int64_t> bounds);

  // Of tensor `tensor`, what the member holds.
  ShardRange Of(size_t tensor, int member) const;
  // What it sums: all that it holds, or a part of that if there are groups.
  ShardRange SummedBy(size_t tensor, int member) const;
  // The rank at which the additions of that begin.
  int FirstTermOf(int member) const;
  // The members of its group, or those that hold the same, from itself on.
  std::vector<int> GroupOf(int member) const;
  std::vector<int> HoldersOf(int member) const;

  const std::vector<int64_t>& sizes() const { return sizes_; }
  int64_t element_bytes() const { return element_bytes_; }
  bool packed() const { return packed_; }
  int groups() const { return groups_; }
  // Empty if the ring says what is whose.
  const std::vector<int64_t>& bounds() const { return bounds_; }

 private:
  int place(int member) const { return member % (members_ / groups_); }
  int group(int member) const { return member / (members_ / groups_); }
  // Of a tensor, the chunks from `first` to `last`.
  ShardRange Chunks(size_t tensor, int first, int last) const;

  const std::vector<int64_t> sizes_;
  const int64_t element_bytes_;
  const int members_;
  const bool packed_;
  const int groups_;
  const std::vector<int64_t> bounds_;
  std::vector<int64_t> begins_;  // Of tensors in the pack.
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REDUCE_SHARD_LAYOUT_H_
