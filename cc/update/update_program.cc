// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "update/update_program.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/types.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::DataTypeSize;
using tensorflow::DataTypeString;

namespace {

// What hands its first input on.
bool IsSame(const std::string& op) {
  return op == "Identity" || op == "Reshape" || op == "StopGradient";
}

bool IsAssign(const std::string& op) {
  return op == "AssignVariableOp" || op == "AssignAddVariableOp" ||
         op == "AssignSubVariableOp";
}

constexpr int kMostValues = 10000;

bool IsKnown(int type) {
  switch (type) {
    case tensorflow::DT_FLOAT:
    case tensorflow::DT_DOUBLE:
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
    case tensorflow::DT_INT32:
    case tensorflow::DT_INT64:
    case tensorflow::DT_BOOL:
      return true;
    default:
      return false;
  }
}

}  // namespace

class Compiler {
 public:
  explicit Compiler(const v1::UpdateProgram& message) : message_(message) {}

  absl::StatusOr<CompiledUpdate> Compile() {
    const int64_t size = message_.size();
    if (size < 0) return Wrong(absl::StrCat("size ", size));
    program_.size_ = size;
    if (message_.input_types_size() + message_.steps_size() > kMostValues) {
      return Wrong(absl::StrCat("more than ", kMostValues, " values"));
    }
    absl::Status status = Types(message_.variable_types(), "a variable",
                                &program_.variable_types_);
    status.Update(
        Types(message_.input_types(), "an input", &program_.input_types_));
    status.Update(Types(message_.index_types(), "numbers of rows",
                        &program_.index_types_));
    if (!status.ok()) return status;
    program_.assigned_.resize(program_.variable_types_.size(), false);
    readers_.resize(program_.variable_types_.size());
    for (int i = 0; i < message_.input_types_size(); ++i) {
      const DataType type = program_.input_types_[i];
      values_.push_back({type, Place{Kind::kInput, i, DataTypeSize(type)}});
    }
    status = AddRowSums();
    if (status.ok()) status = FindLastUses();
    for (step_ = 0; status.ok() && step_ < message_.steps_size(); ++step_) {
      status = AddStep(message_.steps(step_));
      if (status.ok()) FreeRegisters();
    }
    if (status.ok()) status = AddResults();
    if (!status.ok()) return status;
    program_.FindStreams();
    return std::move(program_);
  }

 private:
  using Kind = CompiledUpdate::Place::Kind;
  using Place = CompiledUpdate::Place;

  struct Value {
    DataType type;
    // None if it is an assignment's.
    std::optional<Place> place;
  };

  absl::Status Wrong(const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("TfFuse>ElementwiseUpdate: the program has ", what));
  }

  absl::Status WrongStep(const std::string& what) const {
    return Wrong(absl::StrCat("a step ", step_, " (",
                              message_.steps(step_).op(), ") ", what));
  }

  template <typename Numbers>
  absl::Status Types(const Numbers& numbers, const char* of,
                     std::vector<DataType>* types) const {
    for (const int number : numbers) {
      if (!IsKnown(number)) {
        return Wrong(absl::StrCat(of, " of type ", number));
      }
      types->push_back(static_cast<DataType>(number));
    }
    return absl::OkStatus();
  }

  absl::Status AddRowSums() {
    const std::string wrong = program_.AddRowSums(message_);
    int index = 0;
    for (const auto& sum : program_.row_sums_) {
      values_[sum.input].place = {Kind::kRowSum, index++, sum.bytes};
    }
    return wrong.empty() ? absl::OkStatus() : Wrong(wrong);
  }

  // Also finds what each value is the same as, and checks the values' numbers.
  absl::Status FindLastUses() {
    const int inputs = message_.input_types_size();
    const int steps = message_.steps_size();
    for (int i = 0; i < inputs + steps; ++i) same_.push_back(i);
    last_uses_.assign(inputs + steps, -1);
    for (step_ = 0; step_ < steps; ++step_) {
      const v1::UpdateStep& step = message_.steps(step_);
      for (const int value : step.inputs()) {
        if (value < 0 || value >= inputs + step_) {
          return WrongStep(
              absl::StrCat("that reads value ", value, " of ", inputs + step_));
        }
        last_uses_[same_[value]] = step_;
      }
      if (IsSame(step.op()) && step.inputs_size() == 1) {
        same_[inputs + step_] = same_[step.inputs(0)];
      }
    }
    for (const int value : message_.results()) {
      if (value < 0 || value >= inputs + steps) {
        return Wrong(
            absl::StrCat("result ", value, " of ", inputs + steps, " values"));
      }
      last_uses_[same_[value]] = steps;
    }
    ending_.resize(steps);
    for (int i = inputs; i < inputs + steps; ++i) {
      if (same_[i] != i) continue;
      const int end = std::max(last_uses_[i], i - inputs);
      if (end < steps) ending_[end].push_back(i);
    }
    return absl::OkStatus();
  }

  absl::Status AddStep(const v1::UpdateStep& step) {
    for (const int value : step.inputs()) {
      if (!At(value).place) {
        return WrongStep(absl::StrCat("that reads value ", value,
                                      ", which is an assignment's"));
      }
    }
    if (step.op() == "ReadVariableOp") return AddRead(step);
    if (IsAssign(step.op())) return AddAssign(step);
    if (step.op() == "AddN") return AddSum(step);
    if (!IsKnown(step.type())) {
      return WrongStep(absl::StrCat("of type ", step.type()));
    }
    const DataType type = static_cast<DataType>(step.type());
    if (IsSame(step.op())) {
      if (step.inputs_size() != 1 || At(step.inputs(0)).type != type) {
        return WrongStep("that needs one input of its type");
      }
      values_.push_back(At(step.inputs(0)));
      return absl::OkStatus();
    }
    return AddOperation(step, type);
  }

  absl::Status AddRead(const v1::UpdateStep& step) {
    DataType type = tensorflow::DT_INVALID;
    absl::Status status = Variable(step, &type);
    if (status.ok() && step.inputs_size() != 0) {
      status = WrongStep(absl::StrCat("with ", step.inputs_size(), " inputs"));
    }
    if (!status.ok()) return status;
    readers_[step.variable()].push_back(static_cast<int>(values_.size()));
    values_.push_back({type, Memory(step.variable())});
    return absl::OkStatus();
  }

  absl::Status AddAssign(const v1::UpdateStep& step) {
    DataType type = tensorflow::DT_INVALID;
    absl::Status status = Variable(step, &type);
    if (!status.ok()) return status;
    if (step.inputs_size() != 1 || At(step.inputs(0)).type != type) {
      return WrongStep(
          absl::StrCat("that needs one input of type ", DataTypeString(type)));
    }
    const int variable = step.variable();
    // Who reads the old value later gets a copy of it.
    for (const int reader : readers_[variable]) {
      if (last_uses_[reader] > step_) Keep(reader);
    }
    readers_[variable].clear();
    const Place before = Memory(variable);
    const Place after{Kind::kAfter, variable, DataTypeSize(type)};
    const Place value = *At(step.inputs(0)).place;
    if (step.op() == "AssignVariableOp") {
      Emit(CopyOf(after.bytes), {value}, after);
    } else {
      const BlockOp op = FindBlockOp(
          step.op() == "AssignAddVariableOp" ? "AddV2" : "Sub", type, type);
      if (op.function == nullptr) {
        return WrongStep(absl::StrCat("of type ", DataTypeString(type)));
      }
      Emit(op.function, {before, value}, after);
    }
    program_.assigned_[variable] = true;
    values_.push_back({type, std::nullopt});
    return absl::OkStatus();
  }

  absl::Status AddOperation(const v1::UpdateStep& step, DataType type) {
    if (step.inputs().empty()) return WrongStep("without inputs");
    const bool chooses = step.op() == "Select" || step.op() == "SelectV2";
    const DataType operand = chooses ? type : At(step.inputs(0)).type;
    const BlockOp op = FindBlockOp(step.op(), operand, type);
    if (op.function == nullptr) {
      return WrongStep(absl::StrCat("of ", DataTypeString(operand), " to ",
                                    DataTypeString(type),
                                    ", which is not supported"));
    }
    if (step.inputs_size() != op.operands) {
      return WrongStep(absl::StrCat("with ", step.inputs_size(),
                                    " inputs, not ", op.operands));
    }
    absl::InlinedVector<Place, 3> operands;
    for (int i = 0; i < op.operands; ++i) {
      const Value& value = At(step.inputs(i));
      const DataType wanted = chooses && i == 0 ? tensorflow::DT_BOOL : operand;
      if (value.type != wanted) {
        return WrongStep(absl::StrCat("whose input ", i, " is ",
                                      DataTypeString(value.type), ", not ",
                                      DataTypeString(wanted)));
      }
      operands.push_back(*value.place);
    }
    const Place output = NewRegister(type);
    Emit(op.function, std::move(operands), output);
    values_.push_back({type, output});
    return absl::OkStatus();
  }

  absl::Status AddSum(const v1::UpdateStep& step) {
    const int count = step.inputs_size();
    if (count == 0) return WrongStep("without inputs");
    const DataType type = At(step.inputs(0)).type;
    const BlockOp add = FindBlockOp("AddV2", type, type);
    if (type != step.type() || add.function == nullptr) {
      return WrongStep(
          absl::StrCat("of ", DataTypeString(type), " to type ", step.type()));
    }
    absl::InlinedVector<Place, 9> added;
    for (int i = 0; i < count; ++i) {
      const Value& value = At(step.inputs(i));
      if (value.type != type) {
        return WrongStep(absl::StrCat("whose input ", i, " is ",
                                      DataTypeString(value.type), ", not ",
                                      DataTypeString(type)));
      }
      added.push_back(*value.place);
    }
    // TensorFlow adds up to 9 from left to right, and then sums of 8 each.
    const int first = (count + 6) % 8 + 2;
    const Place output = NewRegister(type);
    Sum(add, added, 0, std::min(count, first), output);
    if (count > first) {
      const Place part = NewRegister(type);
      for (int i = first; i < count; i += 8) {
        Sum(add, added, i, i + 8, part);
        Emit(add.function, {output, part}, output);
      }
      free_.push_back(part.index);
    }
    values_.push_back({type, output});
    return absl::OkStatus();
  }

  void Sum(const BlockOp& add, absl::Span<const Place> added, int begin,
           int end, const Place& output) {
    Emit(CopyOf(output.bytes), {added[begin]}, output);
    for (int i = begin + 1; i < end; ++i) {
      Emit(add.function, {output, added[i]}, output);
    }
  }

  absl::Status AddResults() {
    const auto& assigned = program_.assigned_;
    // (Nothing in memory would bound the size, nor the time.)
    if (message_.results().empty() &&
        std::find(assigned.begin(), assigned.end(), true) == assigned.end()) {
      return Wrong("neither assignments nor results");
    }
    int index = 0;
    for (const int result : message_.results()) {
      const Value& value = At(result);
      if (!value.place) {
        return Wrong(
            absl::StrCat("result ", result, ", which is an assignment's"));
      }
      program_.result_types_.push_back(value.type);
      const int bytes = DataTypeSize(value.type);
      Emit(CopyOf(bytes), {*value.place}, {Kind::kResult, index++, bytes});
    }
    return absl::OkStatus();
  }

  absl::Status Variable(const v1::UpdateStep& step, DataType* type) const {
    const int count = static_cast<int>(program_.variable_types_.size());
    if (step.variable() < 0 || step.variable() >= count) {
      return WrongStep(
          absl::StrCat("of variable ", step.variable(), " of ", count));
    }
    *type = program_.variable_types_[step.variable()];
    return absl::OkStatus();
  }

  // Where a variable's value is by now.
  Place Memory(int variable) const {
    const int bytes = DataTypeSize(program_.variable_types_[variable]);
    return {program_.assigned_[variable] ? Kind::kAfter : Kind::kBefore,
            variable, bytes};
  }

  // Copies a value that the next instruction overwrites.
  void Keep(int value) {
    const Place copy = NewRegister(values_[value].type);
    Emit(CopyOf(copy.bytes), {*values_[value].place}, copy);
    values_[value].place = copy;
  }

  const Value& At(int value) const { return values_[same_[value]]; }

  Place NewRegister(DataType type) {
    int index = program_.registers_;
    if (free_.empty()) {
      ++program_.registers_;
    } else {
      index = free_.back();
      free_.pop_back();
    }
    return {Kind::kRegister, index, DataTypeSize(type)};
  }

  // Registers that no later step reads.
  void FreeRegisters() {
    for (const int value : ending_[step_]) {
      const auto& place = values_[value].place;
      if (place && place->kind == Kind::kRegister) {
        free_.push_back(place->index);
      }
    }
  }

  void Emit(BlockFunction function, absl::InlinedVector<Place, 3> operands,
            Place output) {
    program_.code_.push_back({function, std::move(operands), output});
  }

  const v1::UpdateProgram& message_;
  CompiledUpdate program_;
  int step_ = 0;
  std::vector<Value> values_;
  // By value: the first one that is the same.
  std::vector<int> same_;
  std::vector<int> last_uses_;
  // By step: the values that no later one reads.
  std::vector<std::vector<int>> ending_;
  // By variable: values that are where it is.
  std::vector<std::vector<int>> readers_;
  std::vector<int> free_;
};

absl::StatusOr<CompiledUpdate> CompiledUpdate::Compile(
    const v1::UpdateProgram& message) {
  return Compiler(message).Compile();
}

}  // namespace tf_fuse
