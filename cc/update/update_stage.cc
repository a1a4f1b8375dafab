// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "update/update_stage.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::DataTypeSize;
using tensorflow::DataTypeString;
using tensorflow::Tensor;

namespace {

bool Has(int index, int64_t count) { return index >= 0 && index < count; }

absl::Status WrongStage(const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("TfFuse>StagedUpdate has ", what));
}

}  // namespace

bool IsOneRow(const Tensor& input, int64_t row) {
  return input.dims() > 0 && input.dim_size(0) == 1 &&
         input.NumElements() == row;
}

absl::StatusOr<UpdateStage> UpdateStage::Make(const v1::UpdateStage& message,
                                              int variables, int given,
                                              std::vector<DataType>* inputs) {
  UpdateStage stage;
  stage.message_ = message;
  std::vector<int> read(message.inputs().begin(), message.inputs().end());
  if (message.is_by_row()) read.push_back(message.indices());
  if (message.has_join()) {
    read.insert(read.end(),
                {message.join().indices(), message.join().values()});
  }
  for (const int input : read) {
    stage.reads_kept_ = stage.reads_kept_ || input >= given;
  }
  absl::Status status = stage.CheckProgram(variables, *inputs);
  if (status.ok() && message.has_join()) status = stage.CheckJoin(*inputs);
  if (status.ok() && message.is_by_row()) {
    status = stage.CheckRows(variables, *inputs);
  } else if (status.ok() &&
             (message.gathered_size() > 0 || message.scatters_size() > 0)) {
    status = WrongStage("rows in a stage that is not by row");
  }
  if (!status.ok()) return status;
  if (message.has_join()) {
    inputs->push_back((*inputs)[message.join().values()]);
    inputs->push_back(tensorflow::DT_INT64);
  }
  for (size_t i = 0; i < stage.scatters_.size(); ++i) {
    if (stage.scatters_[i].variable < 0) inputs->push_back(stage.types_[i]);
  }
  return stage;
}

std::vector<int> UpdateStage::Changed() const {
  std::vector<int> changed;
  for (const Scatter& scatter : scatters_) {
    if (scatter.variable >= 0) changed.push_back(scatter.variable);
  }
  for (int i = 0; i < message_.variables_size(); ++i) {
    if (program_->assigns(i)) changed.push_back(message_.variables(i));
  }
  return changed;
}

absl::Status UpdateStage::Check(const Variables& variables,
                                const StageInputs& inputs) const {
  if (is_by_row()) return CheckRowSizes(variables, inputs);
  for (int i = 0; i < message_.variables_size(); ++i) {
    const Tensor& value = *variables[message_.variables(i)]->tensor();
    if (value.dtype() != program_->variable_types()[i] ||
        value.NumElements() != program_->size()) {
      return WrongStage(
          absl::StrCat("variable ", message_.variables(i), ", which is ",
                       DataTypeString(value.dtype()), " of shape ",
                       value.shape().DebugString(), ", in a stage of ",
                       DataTypeString(program_->variable_types()[i]), " and ",
                       program_->size(), " elements"));
    }
  }
  absl::Status status = CheckInputSizes(inputs, program_->size());
  if (status.ok() && message_.has_join()) status = CheckJoinSizes(inputs);
  return status;
}

absl::Status UpdateStage::CheckJoinSizes(const StageInputs& inputs) const {
  const v1::RowJoin& join = message_.join();
  const int64_t count = inputs[join.indices()].NumElements();
  const int64_t row = join.rows() == 0 ? 0 : program_->size() / join.rows();
  if (inputs[join.values()].NumElements() == row * count) {
    return absl::OkStatus();
  }
  return WrongStage(absl::StrCat(
      "values of shape ", inputs[join.values()].shape().DebugString(), " for ",
      count, " rows of ", row, " elements"));
}

absl::Status UpdateStage::CheckJoin(const std::vector<DataType>& inputs) const {
  const v1::RowJoin& join = message_.join();
  const bool has_flags =
      program_ != nullptr && !message_.is_by_row() &&
      program_->result_types() == std::vector<DataType>{tensorflow::DT_BOOL};
  if (!has_flags || join.rows() < 0 ||
      (join.rows() == 0 ? program_->size() != 0
                        : program_->size() % join.rows() != 0)) {
    return WrongStage(absl::StrCat("a join of ", join.rows(),
                                   " rows without a flag for each element"));
  }
  if (!Has(join.indices(), inputs.size()) ||
      !Has(join.values(), inputs.size()) ||
      (inputs[join.indices()] != tensorflow::DT_INT32 &&
       inputs[join.indices()] != tensorflow::DT_INT64) ||
      DataTypeSize(inputs[join.values()]) <= 0) {
    return WrongStage(absl::StrCat("a join of inputs ", join.indices(), " and ",
                                   join.values(), " of ", inputs.size()));
  }
  return absl::OkStatus();
}

absl::Status UpdateStage::CheckProgram(int variables,
                                       const std::vector<DataType>& inputs) {
  if (!message_.has_program()) {
    if (message_.is_by_row() && message_.inputs().empty() &&
        message_.variables().empty()) {
      return absl::OkStatus();
    }
    return WrongStage("a stage without a program");
  }
  auto program = CompiledUpdate::Compile(message_.program());
  if (!program.ok()) return program.status();
  program_ = std::make_shared<CompiledUpdate>(*std::move(program));
  if (!program_->index_types().empty()) {
    return WrongStage("a program that sums rows");
  }
  const size_t own = program_->variable_types().size();
  if (own != static_cast<size_t>(message_.variables_size()) ||
      (own > 0 && message_.is_by_row())) {
    return WrongStage(absl::StrCat("a program of ", own,
                                   " variables in a stage of ",
                                   message_.variables_size()));
  }
  for (const int variable : message_.variables()) {
    if (!Has(variable, variables)) {
      return WrongStage(absl::StrCat("variable ", variable, " of ", variables));
    }
  }
  return CheckProgramInputs(inputs);
}

absl::Status UpdateStage::CheckProgramInputs(
    const std::vector<DataType>& inputs) const {
  if (program_->input_types().size() !=
      static_cast<size_t>(message_.inputs_size())) {
    return WrongStage(
        absl::StrCat("a program of ", program_->input_types().size(),
                     " inputs in a stage of ", message_.inputs_size()));
  }
  for (int i = 0; i < message_.inputs_size(); ++i) {
    const int input = message_.inputs(i);
    if (input < 0 && Has(OtherIndex(input), message_.gathered_size())) {
      continue;  // (Its type is the variable's, which is not known yet.)
    }
    if (!Has(input, inputs.size()) ||
        inputs[input] != program_->input_types()[i]) {
      return WrongStage(
          absl::StrCat("input ", input, " of ", inputs.size(),
                       ", or one of another type than ",
                       DataTypeString(program_->input_types()[i])));
    }
  }
  return absl::OkStatus();
}

absl::Status UpdateStage::CheckRows(int variables,
                                    const std::vector<DataType>& inputs) {
  if (!Has(message_.indices(), inputs.size()) ||
      (inputs[message_.indices()] != tensorflow::DT_INT32 &&
       inputs[message_.indices()] != tensorflow::DT_INT64)) {
    return WrongStage(
        absl::StrCat("numbers of rows in input ", message_.indices()));
  }
  for (const int variable : message_.gathered()) {
    if (!Has(variable, variables)) {
      return WrongStage(absl::StrCat("variable ", variable, " of ", variables));
    }
  }
  for (int i = 0; i < message_.gathered_size(); ++i) {
    // (What is read has a type, and rows that are checked.)
    const auto& read = message_.inputs();
    if (std::find(read.begin(), read.end(), -1 - i) == read.end()) {
      return WrongStage(absl::StrCat("gathered rows of variable ",
                                     message_.gathered(i),
                                     " that nothing reads"));
    }
  }
  if (message_.scatters().empty())
    return WrongStage("rows that change nothing");
  for (const v1::RowScatter& scatter : message_.scatters()) {
    absl::Status status = AddScatter(scatter, variables, inputs);
    if (!status.ok()) return status;
  }
  if (RowVariable() < 0) return WrongStage("rows of no variable");
  return absl::OkStatus();
}

absl::Status UpdateStage::AddScatter(const v1::RowScatter& scatter,
                                     int variables,
                                     const std::vector<DataType>& inputs) {
  const size_t results =
      program_ == nullptr ? 0 : program_->result_types().size();
  const int value = scatter.value();
  const bool has_value =
      value >= 0 ? Has(value, results) : Has(OtherIndex(value), inputs.size());
  const bool is_sum = scatter.op() == "UnsortedSegmentSum";
  const bool is_kept = is_sum || scatter.op() == "Identity";
  if ((!is_kept && !Has(scatter.variable(), variables)) || !has_value ||
      (is_kept && value < 0)) {
    return WrongStage(absl::StrCat("a scatter of value ", value,
                                   " to variable ", scatter.variable()));
  }
  const DataType type =
      value >= 0 ? program_->result_types()[value] : inputs[OtherIndex(value)];
  BlockFunction function = nullptr;
  const bool is_copied =
      scatter.op() == "ResourceScatterUpdate" || scatter.op() == "Identity";
  if (!is_copied) {
    const char* op = scatter.op() == "ResourceScatterAdd" || is_sum ? "AddV2"
                     : scatter.op() == "ResourceScatterSub"         ? "Sub"
                                                                    : "";
    function = FindBlockOp(op, type, type).function;
    if (function == nullptr) {
      return WrongStage(absl::StrCat("a scatter ", scatter.op(), " of ",
                                     DataTypeString(type)));
    }
  } else if (DataTypeSize(type) <= 0 || DataTypeSize(type) > 8) {
    return WrongStage(absl::StrCat("a scatter of ", DataTypeString(type)));
  }
  const int variable = is_kept ? -1 : scatter.variable();
  scatters_.push_back({variable, value, function, is_sum});
  types_.push_back(type);
  return absl::OkStatus();
}

absl::Status UpdateStage::CheckInputSizes(const StageInputs& inputs,
                                          int64_t size, int64_t row) const {
  for (const int input : message_.inputs()) {
    if (input < 0) continue;
    const int64_t elements = inputs[input].NumElements();
    if (elements != size && elements != 1 && !IsOneRow(inputs[input], row)) {
      return WrongStage(absl::StrCat("input ", input, " of shape ",
                                     inputs[input].shape().DebugString(),
                                     " in a stage of ", size, " elements"));
    }
  }
  return absl::OkStatus();
}

absl::Status UpdateStage::CheckRowSizes(const Variables& variables,
                                        const StageInputs& inputs) const {
  const Tensor& indices = inputs[message_.indices()];
  const int64_t count = indices.NumElements();
  std::vector<std::pair<int, DataType>> used;
  for (size_t i = 0; i < scatters_.size(); ++i) {
    if (scatters_[i].variable >= 0) {
      used.push_back({scatters_[i].variable, types_[i]});
    }
  }
  for (int i = 0; i < message_.inputs_size(); ++i) {
    if (message_.inputs(i) < 0) {
      used.push_back({message_.gathered(OtherIndex(message_.inputs(i))),
                      program_->input_types()[i]});
    }
  }
  const int64_t row = RowElements(variables);
  for (const auto& [number, type] : used) {
    const Tensor& value = *variables[number]->tensor();
    if (value.dims() < 1 || value.dtype() != type ||
        value.NumElements() != row * value.dim_size(0)) {
      return WrongStage(absl::StrCat(
          "variable ", number, ", which is ", DataTypeString(value.dtype()),
          " of shape ", value.shape().DebugString(), ", where rows of ", row,
          " ", DataTypeString(type), " are updated"));
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = RowNumber(indices, i);
      if (index < 0 || index >= value.dim_size(0)) {
        return absl::InvalidArgumentError(
            absl::StrCat("indices[", i, "] = ", index, " is not in [0, ",
                         value.dim_size(0), ")"));
      }
    }
  }
  absl::Status status = CheckRowValues(variables, inputs);
  if (!status.ok()) return status;
  return CheckInputSizes(inputs, row * count, row);
}

absl::Status UpdateStage::CheckRowValues(const Variables& variables,
                                         const StageInputs& inputs) const {
  const Tensor& indices = inputs[message_.indices()];
  const int64_t count = indices.NumElements();
  const int64_t row = RowElements(variables);
  for (const Scatter& scatter : scatters_) {
    if (scatter.value >= 0) continue;
    const Tensor& value = inputs[OtherIndex(scatter.value)];
    // (As TensorFlow's kernels, which do not look at those of no rows.)
    const Tensor& variable = *variables[scatter.variable]->tensor();
    tensorflow::TensorShape expected = indices.shape();
    for (int i = 1; i < variable.dims(); ++i) {
      expected.AddDim(variable.dim_size(i));
    }
    if (count > 0 && value.dims() > 0 && value.shape() != expected) {
      return WrongStage(absl::StrCat(
          "values of shape ", value.shape().DebugString(), " for ", count,
          " rows of ", row, " elements: expected ", expected.DebugString()));
    }
  }
  return absl::OkStatus();
}

int UpdateStage::RowVariable() const {
  for (const Scatter& scatter : scatters_) {
    if (scatter.variable >= 0) return scatter.variable;
  }
  return message_.gathered().empty() ? -1 : message_.gathered(0);
}

int64_t UpdateStage::RowElements(const Variables& variables) const {
  const Tensor& value = *variables[RowVariable()]->tensor();
  if (value.dims() < 1 || value.dim_size(0) == 0) return 0;
  return value.NumElements() / value.dim_size(0);
}

}  // namespace tf_fuse
