// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
//   program_fuzz SECONDS SEED
//
// Programs of elementwise updates, as a graph may hold them: mostly right ones,
// ones with a number or a type changed, and bytes. What compiles is run on
// memory that is not one byte too long: in place and not, block by block and in
// another order of the blocks; all must give the same bytes, and leave alone
// what no step assigns. Made for AddressSanitizer.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "update/update_program.h"

namespace tf_fuse {
namespace {

using tensorflow::DataType;
using tensorflow::DataTypeSize;

constexpr DataType kTypes[] = {tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE,
                               tensorflow::DT_HALF,  tensorflow::DT_BFLOAT16,
                               tensorflow::DT_INT32, tensorflow::DT_INT64,
                               tensorflow::DT_BOOL};
constexpr const char* kOps[] = {
    "Abs",       "Add",        "AddN",        "AddV2",    "Cast",
    "Div",       "DivNoNan",   "Equal",       "Exp",      "Greater",
    "Identity",  "IsFinite",   "Less",        "Log",      "LogicalAnd",
    "LogicalOr", "LogicalNot", "Maximum",     "Minimum",  "Mul",
    "MulNoNan",  "Neg",        "NotAnOp",     "OnesLike", "Pow",
    "RealDiv",   "Reciprocal", "Reshape",     "Rsqrt",    "SelectV2",
    "Sign",      "Sqrt",       "Square",      "Sub",      "Tanh",
    "ZerosLike", "IsNan",      "StopGradient"};

using Random = std::mt19937_64;

int Below(Random* random, int limit) {
  return static_cast<int>((*random)() % static_cast<uint64_t>(limit));
}

bool OneIn(Random* random, int n) { return Below(random, n) == 0; }

template <typename T, size_t n>
const T& OneOf(Random* random, const T (&all)[n]) {
  return all[Below(random, n)];
}

// A program whose values have types that are known while it is made.
class Maker {
 public:
  explicit Maker(Random* random) : random_(random) {}

  v1::UpdateProgram Make() {
    constexpr int64_t kSizes[] = {0,   1,   2,   7,    100,
                                  511, 512, 513, 4096, 3 * 4096 + 5};
    message_.set_size(OneOf(random_, kSizes));
    const DataType type = OneOf(random_, kTypes);
    for (int i = Below(random_, 4); i > 0; --i) {
      message_.add_variable_types(TypeNear(type));
    }
    for (int i = Below(random_, 4); i > 0; --i) {
      types_.push_back(TypeNear(type));
      message_.add_input_types(types_.back());
    }
    if (OneIn(random_, 2)) AddRowSums();
    for (int i = Below(random_, 40); i > 0; --i) AddStep();
    for (int i = Below(random_, 3); i > 0 && !types_.empty(); --i) {
      message_.add_results(Value());
    }
    return std::move(message_);
  }

 private:
  // Some inputs become rows.
  void AddRowSums() {
    constexpr int64_t kRows[] = {1, 2, 5, 7, 19, 512, 513, 4096};
    constexpr const char* kApplied[] = {"", "", "Square", "Abs", "NotAnOp"};
    int64_t rows = OneOf(random_, kRows);
    if (message_.size() % rows != 0)
      rows = std::max<int64_t>(message_.size(), 1);
    message_.set_rows(rows);
    for (int i = 1 + Below(random_, 2); i > 0; --i) {
      message_.add_index_types(OneIn(random_, 2) ? tensorflow::DT_INT32
                                                 : tensorflow::DT_INT64);
    }
    for (int i = 0; i < message_.input_types_size(); ++i) {
      if (OneIn(random_, 2)) continue;
      v1::RowSum* const sum = message_.add_row_sums();
      sum->set_input(i);
      sum->set_indices(Below(random_, message_.index_types_size()));
      sum->set_op(kApplied[Below(random_, OneIn(random_, 20) ? 5 : 4)]);
    }
  }

  DataType TypeNear(DataType type) {
    return OneIn(random_, 8) ? OneOf(random_, kTypes) : type;
  }

  // Mostly one of the last values; of that type, if there is one.
  int Value(int type = -1) {
    const int count = static_cast<int>(types_.size());
    const auto fits = [&](int value) {
      return types_[value] != tensorflow::DT_INVALID &&
             (type < 0 || types_[value] == type);
    };
    const int first = OneIn(random_, 3)
                          ? Below(random_, count)
                          : count - 1 - Below(random_, std::min(count, 5));
    for (int i = 0; i < count && !OneIn(random_, 500); ++i) {
      if (fits((first + i) % count)) return (first + i) % count;
    }
    return first;
  }

  void AddStep() {
    v1::UpdateStep* const step = message_.add_steps();
    const int variables = message_.variable_types_size();
    DataType type = tensorflow::DT_INVALID;
    if (variables > 0 && (types_.empty() || OneIn(random_, 4))) {
      step->set_op("ReadVariableOp");
      step->set_variable(Below(random_, variables));
      type = static_cast<DataType>(message_.variable_types(step->variable()));
    } else if (variables > 0 && OneIn(random_, 4)) {
      constexpr const char* kAssigns[] = {
          "AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp"};
      step->set_op(OneOf(random_, kAssigns));
      step->set_variable(Below(random_, variables));
      step->add_inputs(Value(message_.variable_types(step->variable())));
    } else if (!types_.empty()) {
      type = AddOperation(step);
    }
    types_.push_back(type);
  }

  static bool Tests(const std::string& op, DataType type) {
    return FindBlockOp(op, type, tensorflow::DT_BOOL).function != nullptr;
  }

  static bool IsOf(const std::string& op, DataType type) {
    return FindBlockOp(op, type, type).function != nullptr || Tests(op, type) ||
           op == "AddN" || op == "Identity" || op == "Reshape" ||
           FindBlockOp(op, type, tensorflow::DT_FLOAT).function != nullptr;
  }

  DataType AddOperation(v1::UpdateStep* step) {
    const int first = Value();
    DataType type = types_[first];
    std::string op = OneOf(random_, kOps);
    while (!OneIn(random_, 500) && !IsOf(op, type)) op = OneOf(random_, kOps);
    step->set_op(op);
    if (op == "SelectV2") {
      step->add_inputs(Value(tensorflow::DT_BOOL));
      step->add_inputs(first);
      step->add_inputs(Value(type));
    } else {
      step->add_inputs(first);
      int more = FindBlockOp(op, type, type).operands - 1;
      if (Tests(op, type)) {
        more = FindBlockOp(op, type, tensorflow::DT_BOOL).operands - 1;
      }
      if (op == "AddN") more = Below(random_, 20);
      for (; more > 0; --more) step->add_inputs(Value(type));
    }
    if (!FindBlockOp(op, type, type).function && Tests(op, type)) {
      type = tensorflow::DT_BOOL;
    } else if (op == "Cast") {
      type = OneIn(random_, 2) ? tensorflow::DT_FLOAT : tensorflow::DT_DOUBLE;
    }
    step->set_type(type);
    return type;
  }

  Random* const random_;
  v1::UpdateProgram message_;
  // By value; invalid of assignments.
  std::vector<DataType> types_;
};

void Damage(Random* random, v1::UpdateProgram* message) {
  constexpr int kOdd[] = {-1, 0, 1, 7, 13, 100, 1 << 30, -(1 << 30)};
  const int odd = OneOf(random, kOdd);
  const int steps = message->steps_size();
  switch (Below(random, 8)) {
    case 0:
      message->set_size(odd > 1000 ? 100 : odd);
      break;
    case 1:
      if (message->results_size() > 0) message->set_results(0, odd);
      break;
    case 2:
      if (message->input_types_size() > 0) message->set_input_types(0, odd);
      break;
    case 3:
      message->set_rows(odd);
      break;
    case 4:
      if (message->row_sums_size() == 0) break;
      if (OneIn(random, 2)) {
        message->mutable_row_sums(0)->set_input(odd);
      } else {
        message->mutable_row_sums(0)->set_indices(odd);
      }
      break;
    default:
      if (steps == 0) break;
      v1::UpdateStep* const step = message->mutable_steps(Below(random, steps));
      if (OneIn(random, 3)) {
        step->set_variable(odd);
      } else if (OneIn(random, 2)) {
        step->set_type(odd);
      } else if (step->inputs_size() > 0) {
        step->set_inputs(Below(random, step->inputs_size()), odd);
      }
  }
}

using Bytes = std::vector<std::unique_ptr<char[]>>;

// Memory as long as the tensor, not longer; numbers that are valid bools.
std::unique_ptr<char[]> Memory(Random* random, DataType type, int64_t size) {
  const int64_t bytes = size * DataTypeSize(type);
  auto memory = std::make_unique<char[]>(bytes);
  for (int64_t i = 0; i < bytes; ++i) {
    memory[i] = static_cast<char>(type == tensorflow::DT_BOOL ? Below(random, 2)
                                                              : (*random)());
  }
  return memory;
}

// Where rows go: some to the same place, some nowhere.
SortedRows Indices(Random* random, DataType type, int64_t count, int64_t rows) {
  tensorflow::Tensor numbers(type, tensorflow::TensorShape({count}));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = OneIn(random, 9)
                            ? -1 - Below(random, 3)
                            : Below(random, static_cast<int>(rows));
    if (type == tensorflow::DT_INT32) {
      numbers.flat<int32_t>()(i) = static_cast<int32_t>(row);
    } else {
      numbers.flat<int64_t>()(i) = row;
    }
  }
  return *SortedRows::Sort(numbers, rows);
}

struct Outcome {
  std::vector<std::string> variables, results;
};

Outcome Run(const CompiledUpdate& program, const Bytes& variables,
            const std::vector<BlockOperand>& inputs,
            const std::vector<SortedRows>& indices, bool in_place,
            bool backwards) {
  ProgramMemory memory;
  memory.inputs = inputs;
  memory.indices = indices;
  Bytes before, after, results;
  const auto bytes = [&](DataType type) {
    return program.size() * DataTypeSize(type);
  };
  const auto& types = program.variable_types();
  for (size_t i = 0; i < variables.size(); ++i) {
    const int64_t count = bytes(types[i]);
    before.push_back(std::make_unique<char[]>(count));
    std::memcpy(before[i].get(), variables[i].get(), count);
    after.push_back(nullptr);
    if (program.assigns(static_cast<int>(i)) && !in_place) {
      after[i] = std::make_unique<char[]>(count);
    }
    memory.variables.push_back(
        {before[i].get(), after[i] ? after[i].get() : before[i].get()});
  }
  for (const DataType type : program.result_types()) {
    results.push_back(std::make_unique<char[]>(bytes(type)));
    memory.results.push_back(results.back().get());
  }
  const int64_t blocks = (program.size() + kBlockElements - 1) / kBlockElements;
  if (backwards) {
    for (int64_t i = blocks; i > 0; --i) program.Run(memory, i - 1, i);
  } else {
    program.Run(memory, 0, blocks);
  }
  Outcome outcome;
  for (size_t i = 0; i < variables.size(); ++i) {
    outcome.variables.emplace_back(memory.variables[i].after, bytes(types[i]));
    if (!in_place && std::memcmp(before[i].get(), variables[i].get(),
                                 bytes(types[i])) != 0) {
      std::fprintf(stderr, "the old value of variable %zu was overwritten\n",
                   i);
      std::abort();
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    outcome.results.emplace_back(memory.results[i],
                                 bytes(program.result_types()[i]));
  }
  return outcome;
}

void Try(Random* random, const CompiledUpdate& program) {
  Bytes variables, memory;
  for (const DataType type : program.variable_types()) {
    variables.push_back(Memory(random, type, program.size()));
  }
  std::vector<SortedRows> indices;
  std::vector<int64_t> counts;
  for (const DataType type : program.index_types()) {
    counts.push_back(Below(random, 40));
    indices.push_back(Indices(random, type, counts.back(), program.rows()));
  }
  std::vector<BlockOperand> inputs;
  for (size_t i = 0; i < program.input_types().size(); ++i) {
    const int vector = program.IndicesOf(static_cast<int>(i));
    const bool single = vector < 0 && program.size() != 1 && OneIn(random, 2);
    const int64_t size =
        vector < 0 ? (single ? 1 : program.size())
                   : counts[vector] * (program.size() / program.rows());
    memory.push_back(Memory(random, program.input_types()[i], size));
    inputs.push_back({memory.back().get(), single});
  }
  const Outcome once = Run(program, variables, inputs, indices, false, false);
  for (size_t i = 0; i < variables.size(); ++i) {
    const std::string& value = once.variables[i];
    if (!program.assigns(static_cast<int>(i)) &&
        std::memcmp(value.data(), variables[i].get(), value.size()) != 0) {
      std::fprintf(stderr, "variable %zu is not assigned, and changed\n", i);
      std::abort();
    }
  }
  for (const bool in_place : {false, true}) {
    const Outcome again =
        Run(program, variables, inputs, indices, in_place, true);
    if (again.variables != once.variables || again.results != once.results) {
      std::fprintf(stderr, "other values %s\n",
                   in_place ? "in place" : "block by block");
      std::abort();
    }
  }
}

int Main(double seconds, uint64_t seed) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  uint64_t made = 0, run = 0;
  for (; made == 0 || std::chrono::steady_clock::now() < end; ++made) {
    // (Printed by whoever looks for what failed: the seed of one program.)
    Random random(seed * 1'000'003 + made);
    v1::UpdateProgram message = Maker(&random).Make();
    if (OneIn(&random, 4)) Damage(&random, &message);
    if (OneIn(&random, 16)) {
      std::string bytes = message.SerializeAsString();
      if (!bytes.empty()) {
        bytes[Below(&random, static_cast<int>(bytes.size()))] =
            static_cast<char>(random() % 128);  // Of UTF-8, always.
      }
      if (!message.ParseFromString(bytes) || message.size() > 20'000) continue;
    }
    const auto program = CompiledUpdate::Compile(message);
    if (!program.ok()) {
      if (program.status().code() != absl::StatusCode::kInvalidArgument) {
        std::fprintf(stderr, "%s\n", program.status().ToString().c_str());
        return 1;
      }
      continue;
    }
    ++run;
    Try(&random, *program);
  }
  std::printf("%llu programs, %llu run, seed %llu, clean\n",
              static_cast<unsigned long long>(made),
              static_cast<unsigned long long>(run),
              static_cast<unsigned long long>(seed));
  return run > 0 || made < 100 ? 0 : 1;
}

}  // namespace
}  // namespace tf_fuse

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s SECONDS SEED\n", argv[0]);
    return 2;
  }
  return tf_fuse::Main(std::atof(argv[1]), std::strtoull(argv[2], nullptr, 10));
}
