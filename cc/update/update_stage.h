// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs one stage of TfFuse>StagedUpdate, on whole variables or on rows of them.

#ifndef TF_FUSE_CC_UPDATE_UPDATE_STAGE_H_
#define TF_FUSE_CC_UPDATE_UPDATE_STAGE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tf_fuse/v1/staged_update.pb.h"
#include "update/block_ops.h"
#include "update/locked_variables.h"
#include "update/row_numbers.h"
#include "update/update_program.h"

namespace tf_fuse {

// What stages read beside variables: the inputs of the operation, and after
// them what earlier stages have kept.
class StageInputs {
 public:
  explicit StageInputs(const tensorflow::OpInputList& inputs)
      : inputs_(inputs) {}

  const tensorflow::Tensor& operator[](int i) const {
    return i < inputs_.size() ? inputs_[i] : kept_[i - inputs_.size()];
  }
  void Keep(tensorflow::Tensor tensor) { kept_.push_back(std::move(tensor)); }

 private:
  const tensorflow::OpInputList& inputs_;
  std::vector<tensorflow::Tensor> kept_;
};

// `Check` and `Run` are called under the lock of its variables.
class UpdateStage {
 public:
  // Fails if the stage names what is not there. `variables` is how many the
  // operation has. `inputs` are the types of what it reads beside them: first
  // `given` inputs of its own, then what earlier stages keep. Adds the types of
  // what this stage keeps.
  static absl::StatusOr<UpdateStage> Make(
      const v1::UpdateStage& message, int variables, int given,
      std::vector<tensorflow::DataType>* inputs);

  // The variables that it changes.
  std::vector<int> Changed() const;

  bool is_by_row() const { return message_.is_by_row(); }

  // Whether it reads what earlier stages have kept.
  bool reads_kept() const { return reads_kept_; }

  // Whether the values of variables and inputs have the sizes that it needs.
  absl::Status Check(const Variables& variables,
                     const StageInputs& inputs) const;

  // Keeps what later stages read in `inputs`.
  absl::Status Run(tensorflow::OpKernelContext* ctx, const Variables& variables,
                   StageInputs* inputs) const;

 private:
  // What is done with the rows of a variable.
  struct Scatter {
    int variable;  // -1: the value is kept.
    int value;
    BlockFunction function;  // Null: the rows are replaced.
    bool is_sum = false;     // Of what is kept: of all rows with a number.
  };

  UpdateStage() = default;

  absl::Status CheckProgram(int variables,
                            const std::vector<tensorflow::DataType>& inputs);
  absl::Status CheckProgramInputs(
      const std::vector<tensorflow::DataType>& inputs) const;
  absl::Status CheckRows(int variables,
                         const std::vector<tensorflow::DataType>& inputs);
  absl::Status CheckJoin(const std::vector<tensorflow::DataType>& inputs) const;
  absl::Status AddScatter(const v1::RowScatter& scatter, int variables,
                          const std::vector<tensorflow::DataType>& inputs);
  // `row` is how many elements one has; -1 of whole variables.
  absl::Status CheckInputSizes(const StageInputs& inputs, int64_t size,
                               int64_t row = -1) const;
  absl::Status CheckRowSizes(const Variables& variables,
                             const StageInputs& inputs) const;
  absl::Status CheckRowValues(const Variables& variables,
                              const StageInputs& inputs) const;

  // A variable whose rows it changes or gathers.
  int RowVariable() const;
  int64_t RowElements(const Variables& variables) const;
  absl::Status CheckJoinSizes(const StageInputs& inputs) const;
  absl::Status RunWhole(tensorflow::OpKernelContext* ctx,
                        const Variables& variables, StageInputs* inputs) const;
  absl::Status RunRows(tensorflow::OpKernelContext* ctx,
                       const Variables& variables, StageInputs* inputs) const;
  absl::Status KeepSums(tensorflow::OpKernelContext* ctx,
                        const Variables& variables, const Scatter& scatter,
                        const tensorflow::Tensor& values,
                        StageInputs* inputs) const;
  // The program on `size` elements of rows.
  absl::Status RunOnRows(tensorflow::OpKernelContext* ctx,
                         const Variables& variables, const StageInputs& inputs,
                         int64_t row,
                         std::vector<tensorflow::Tensor>* results) const;
  static void ScatterRows(const Scatter& scatter,
                          const tensorflow::Tensor& values,
                          const tensorflow::Tensor& indices, int64_t row,
                          tensorflow::Tensor* variable);

  v1::UpdateStage message_;
  // Null: rows are scattered as they come.
  std::shared_ptr<CompiledUpdate> program_;
  std::vector<Scatter> scatters_;
  std::vector<tensorflow::DataType> types_;  // Of what is scattered.
  bool reads_kept_ = false;
};

// An input that has one row stands for all, as one of one element does.
bool IsOneRow(const tensorflow::Tensor& input, int64_t row);

// An input of the operation by its number in a stage, where -1 is the first one
// of the others.
inline int OtherIndex(int number) { return -1 - number; }

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_UPDATE_UPDATE_STAGE_H_
