// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/reduce/permute.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/reduce/point_to_point.h"

namespace tf_fuse {

using tensorflow::CollectiveContext;
using tensorflow::Tensor;

namespace {

constexpr size_t kSentPiecesAhead = 4;  // Pieces that are asked for.

struct SentPiece {
  size_t tensor;
  int64_t begin;
  int64_t end;
};

// A permutation of the members' tensors, cut into pieces.
std::vector<SentPiece> SentPiecesOf(const std::vector<Tensor>& tensors,
                                    int64_t piece_bytes) {
  std::vector<SentPiece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t elements = tensors[i].NumElements();
    const int64_t room =
        piece_bytes / tensorflow::DataTypeSize(tensors[i].dtype());
    for (int64_t begin = 0; begin < elements; begin += room) {
      pieces.push_back({i, begin, std::min(elements, begin + room)});
    }
  }
  return pieces;
}

std::string DescribePermutation(const std::vector<int>& receivers,
                                const std::vector<Tensor>& tensors) {
  std::string text =
      absl::StrCat("permutation to ", absl::StrJoin(receivers, ", "), " of ",
                   tensorflow::DataTypeString(tensors[0].dtype()), " [");
  for (size_t i = 0; i < tensors.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", tensors[i].NumElements());
  }
  return absl::StrCat(text, "]");
}

std::string SentName(size_t piece) { return absl::StrCat("cp", piece); }

}  // namespace

absl::Status Permute(const std::shared_ptr<CollectiveContext>& context,
                     const std::vector<int>& receivers,
                     const std::vector<Tensor>& inputs,
                     std::vector<Tensor>* outputs) {
  DirectExchange exchange(context, DescribePermutation(receivers, inputs));
  const int rank = exchange.rank();
  const int from = static_cast<int>(
      std::find(receivers.begin(), receivers.end(), rank) - receivers.begin());
  const std::vector<SentPiece> pieces =
      SentPiecesOf(inputs, exchange.piece_bytes());
  for (size_t k = 0; k < pieces.size(); ++k) {
    const SentPiece& piece = pieces[k];
    exchange.Post(receivers[rank], SentName(k),
                  inputs[piece.tensor].Slice(piece.begin, piece.end));
  }
  std::deque<bool> taken(pieces.size(), false);
  size_t asked = 0;
  size_t done = 0;
  exchange.RunUntil([&] {
    while (true) {
      for (; asked < std::min(pieces.size(), done + kSentPiecesAhead);
           ++asked) {
        const SentPiece& piece = pieces[asked];
        Tensor to = (*outputs)[piece.tensor].Slice(piece.begin, piece.end);
        exchange.Take(from, SentName(asked), static_cast<char*>(to.data()),
                      to.TotalBytes(), &taken[asked]);
      }
      if (done == pieces.size()) return true;
      if (!exchange.Came(&taken[done])) return false;
      ++done;
    }
  });
  return exchange.Finish();
}

}  // namespace tf_fuse
