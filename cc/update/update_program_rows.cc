// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Checks and adds the sums of rows of a program (update_program.h).

#include <string>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"
#include "update/update_program.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::DataTypeString;

std::string CompiledUpdate::AddRowSums(const v1::UpdateProgram& message) {
  for (const DataType type : index_types_) {
    if (type != tensorflow::DT_INT32 && type != tensorflow::DT_INT64) {
      return absl::StrCat("numbers of rows of ", DataTypeString(type));
    }
  }
  rows_ = message.rows();
  if (index_types_.empty() ? rows_ != 0 : rows_ < 1 || size_ % rows_ != 0) {
    return absl::StrCat(rows_, " rows of ", size_, " elements");
  }
  for (const v1::RowSum& sum : message.row_sums()) {
    std::string wrong = AddRowSum(sum);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string CompiledUpdate::AddRowSum(const v1::RowSum& message) {
  const auto has = [](int index, const auto& all) {
    return index >= 0 && static_cast<size_t>(index) < all.size();
  };
  const int input = message.input(), indices = message.indices();
  if (!has(input, input_types_) || !has(indices, index_types_) ||
      IndicesOf(input) >= 0) {
    return absl::StrCat("rows in input ", input, " with the numbers ", indices);
  }
  const DataType type = input_types_[input];
  const std::string& op = message.op();
  const BlockOp add = FindBlockOp("AddV2", type, type);
  const BlockOp apply = op.empty() ? BlockOp() : FindBlockOp(op, type, type);
  if (add.function == nullptr || (!op.empty() && apply.operands != 1)) {
    return absl::StrCat("a sum of rows of ", DataTypeString(type),
                        " after the operation '", op, "'");
  }
  row_sums_.push_back({input, indices, tensorflow::DataTypeSize(type),
                       apply.function, add.function});
  return "";
}

}  // namespace tf_fuse
