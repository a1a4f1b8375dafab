// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Evaluates an UpdateProgram block by block, so that what is in between stays
// in the cache and each variable is read and written once.

#ifndef TF_FUSE_CC_UPDATE_UPDATE_PROGRAM_H_
#define TF_FUSE_CC_UPDATE_UPDATE_PROGRAM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tf_fuse/v1/update.pb.h"
#include "update/block_ops.h"
#include "update/row_numbers.h"

namespace tf_fuse {

// The memory of a variable's value: before, and where the new one goes. Both
// may be the same.
struct VariableMemory {
  const char* before;
  char* after;
};

// What a program runs on.
struct ProgramMemory {
  std::vector<VariableMemory> variables;
  std::vector<BlockOperand> inputs;
  std::vector<char*> results;
  // By vector of numbers: where the rows of inputs go.
  std::vector<SortedRows> indices;
};

class CompiledUpdate {
 public:
  // Errors say which step is wrong, and how. Whatever is in the message, a
  // program that is returned only reads and writes what `Run` is given.
  static absl::StatusOr<CompiledUpdate> Compile(
      const v1::UpdateProgram& message);

  int64_t size() const { return size_; }
  const std::vector<tensorflow::DataType>& variable_types() const {
    return variable_types_;
  }
  const std::vector<tensorflow::DataType>& input_types() const {
    return input_types_;
  }
  const std::vector<tensorflow::DataType>& result_types() const {
    return result_types_;
  }
  // Of the vectors that number rows.
  const std::vector<tensorflow::DataType>& index_types() const {
    return index_types_;
  }
  // The vector that numbers the rows of an input; -1: the input is not rows.
  int IndicesOf(int input) const {
    for (const RowSum& sum : row_sums_) {
      if (sum.input == input) return sum.indices;
    }
    return -1;
  }
  // Of each value, if there are vectors that number rows.
  int64_t rows() const { return rows_; }
  // Whether a variable is assigned.
  bool assigns(int variable) const { return assigned_[variable]; }
  // An estimate of the time for an element.
  double nanoseconds() const {
    return 0.15 * static_cast<double>(code_.size());
  }

  // Computes the elements of blocks `begin` to `end`, of kBlockElements each;
  // the last one may be shorter. Other blocks may be computed at the same time.
  void Run(const ProgramMemory& memory, int64_t begin, int64_t end) const;

 private:
  friend class Compiler;

  // Where elements are.
  struct Place {
    enum class Kind : uint8_t {
      kInput,
      kBefore,
      kAfter,
      kResult,
      kRegister,
      kRowSum
    };
    Kind kind;
    int index;
    int bytes;  // Of an element.
  };
  struct Instruction {
    BlockFunction function;
    absl::InlinedVector<Place, 3> operands;
    Place output;
  };
  struct RowSum {
    int input;
    int indices;
    int bytes;            // Of an element.
    BlockFunction apply;  // To each row first; null: nothing.
    BlockFunction add;
  };
  class Frame;
  class Ahead;

  CompiledUpdate() = default;

  // Reads which inputs are rows; returns what is wrong with them, or "".
  std::string AddRowSums(const v1::UpdateProgram& message);
  std::string AddRowSum(const v1::RowSum& message);
  void FindStreams();

  int64_t size_ = 0;
  int registers_ = 0;
  std::vector<tensorflow::DataType> variable_types_, input_types_,
      result_types_, index_types_;
  std::vector<RowSum> row_sums_;
  int64_t rows_ = 0;
  std::vector<bool> assigned_;
  std::vector<Instruction> code_;
  // Memory beside the registers that the code is on, in the order in which it
  // is needed.
  std::vector<Place> streams_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_UPDATE_PROGRAM_H_
