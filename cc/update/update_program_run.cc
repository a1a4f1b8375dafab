// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs a program block by block (update_program.h).

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "update/update_program.h"

namespace tf_fuse {

namespace {

// Bytes of the widest type.
constexpr size_t kWidest = 8;

}  // namespace

void CompiledUpdate::FindStreams() {
  std::set<std::pair<Place::Kind, int>> seen;
  const auto add = [&](const Place& place) {
    if (place.kind != Place::Kind::kRegister &&
        place.kind != Place::Kind::kRowSum &&
        seen.insert({place.kind, place.index}).second) {
      streams_.push_back(place);
    }
  };
  for (const Instruction& instruction : code_) {
    for (const Place& place : instruction.operands) add(place);
    add(instruction.output);
  }
}

// What one thread works with: operands and outputs are where those of the next
// block are.
class CompiledUpdate::Frame {
 public:
  Frame(const CompiledUpdate& program, const ProgramMemory& memory,
        int64_t first)
      : scratch_(new char[(program.registers_ + program.row_sums_.size() + 1) *
                              kStride +
                          kAlign]) {
    const auto address = reinterpret_cast<uintptr_t>(scratch_.get());
    registers_ = scratch_.get() + (kAlign - address % kAlign) % kAlign;
    row_sums_ = registers_ + program.registers_ * kStride;
    applied_ = row_sums_ + program.row_sums_.size() * kStride;
    const int64_t width = program.rows_ > 0 ? program.size_ / program.rows_ : 0;
    for (size_t i = 0; i < program.row_sums_.size(); ++i) {
      const RowSum& sum = program.row_sums_[i];
      const SortedRows& rows = memory.indices[sum.indices];
      char* const block = row_sums_ + i * kStride;
      std::memset(block, 0, kBlockElements * sum.bytes);
      sums_.push_back({sum, width, &rows,
                       static_cast<const char*>(memory.inputs[sum.input].data),
                       block, width > 0 ? rows.FirstFrom(first / width) : 0});
    }
    for (const Instruction& one : program.code_) {
      Step step{one.function, {}, {}, nullptr, 0};
      for (size_t i = 0; i < one.operands.size(); ++i) {
        const Place& place = one.operands[i];
        step.operands[i] = At(memory, place, first);
        step.strides[i] = step.operands[i].single ? 0 : Stride(place);
      }
      // (Only inputs are read-only, and none of them is an output.)
      step.output = const_cast<void*>(At(memory, one.output, first).data);
      step.output_stride = Stride(one.output);
      steps_.push_back(step);
    }
  }

  // Computes a block, whose first element is `first`.
  void Run(int64_t first, int64_t count, Ahead* ahead);
  void GoToNextBlock();

  // Where an element is.
  BlockOperand At(const ProgramMemory& memory, const Place& place,
                  int64_t element) const {
    const int64_t offset = element * place.bytes;
    switch (place.kind) {
      case Place::Kind::kInput: {
        const BlockOperand& input = memory.inputs[place.index];
        if (input.single) return input;
        return {static_cast<const char*>(input.data) + offset, false};
      }
      case Place::Kind::kBefore:
        return {memory.variables[place.index].before + offset, false};
      case Place::Kind::kAfter:
        return {memory.variables[place.index].after + offset, false};
      case Place::Kind::kResult:
        return {memory.results[place.index] + offset, false};
      case Place::Kind::kRegister:
        return {registers_ + place.index * kStride, false};
      case Place::Kind::kRowSum:
        return {row_sums_ + place.index * kStride, false};
    }
    return {nullptr, false};
  }

 private:
  static constexpr int kMostOperands = 3;
  static constexpr size_t kAlign = 64;
  // (Not a power of two: registers would compete for the same lines of a
  // cache.)
  static constexpr size_t kStride = kBlockElements * kWidest + kAlign;

  struct Step {
    BlockFunction function;
    BlockOperand operands[kMostOperands];
    int64_t strides[kMostOperands];
    void* output;
    int64_t output_stride;
  };

  // Sums rows to a block.
  struct Sum {
    RowSum how;
    int64_t width;  // Of a row, in elements.
    const SortedRows* rows;
    const char* values;
    char* block;
    size_t next;  // The first of the rows that is not before the block.
    bool is_zero = true;

    void Run(int64_t first, int64_t count, char* applied);
  };

  // From a block to the next one.
  static int64_t Stride(const Place& place) {
    const bool stays = place.kind == Place::Kind::kRegister ||
                       place.kind == Place::Kind::kRowSum;
    return stays ? 0 : kBlockElements * place.bytes;
  }

  std::unique_ptr<char[]> scratch_;
  char* registers_;
  char* row_sums_;
  char* applied_;
  absl::InlinedVector<Sum, 2> sums_;
  absl::InlinedVector<Step, 16> steps_;
};

// Asks for the memory of the next block while one is computed. Otherwise an
// instruction that comes to a variable first waits for all of it, and the
// others, which find it in the cache, leave the way to memory idle.
class CompiledUpdate::Ahead {
 public:
  Ahead(const CompiledUpdate& program, const ProgramMemory& memory,
        const Frame& frame)
      : parts_(static_cast<int64_t>(program.code_.size())) {
    for (const Place& place : program.streams_) {
      const BlockOperand start = frame.At(memory, place, 0);
      const auto* data = static_cast<const char*>(start.data);
      if (!start.single) streams_.push_back({data, place.bytes});
    }
  }

  // From here on, elements from `first` on are asked for; none if `count` is
  // not above 0.
  void Begin(int64_t first, int64_t count) {
    int64_t all = 0;
    for (Stream& stream : streams_) {
      stream.next = stream.start + first * stream.bytes;
      stream.lines = count > 0 ? (count * stream.bytes + kLine - 1) / kLine : 0;
      all += stream.lines;
    }
    at_ = 0;
    per_part_ = (all + parts_ - 1) / parts_;
  }

  // Asks for a part, so that they do not get in each other's way.
  void Ask() {
    for (int64_t left = per_part_; left > 0 && at_ < streams_.size();) {
      Stream& stream = streams_[at_];
      const int64_t now = std::min(left, stream.lines);
      for (int64_t i = 0; i < now; ++i) {
        __builtin_prefetch(stream.next + i * kLine, /*rw=*/0, /*locality=*/3);
      }
      stream.next += now * kLine;
      stream.lines -= now;
      left -= now;
      if (stream.lines == 0) ++at_;
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  struct Stream {
    const char* start;
    int bytes;
    const char* next = nullptr;
    int64_t lines = 0;
  };

  const int64_t parts_;
  absl::InlinedVector<Stream, 8> streams_;
  size_t at_ = 0;
  int64_t per_part_ = 0;
};

void CompiledUpdate::Frame::Sum::Run(int64_t first, int64_t count,
                                     char* applied) {
  if (!is_zero) std::memset(block, 0, kBlockElements * how.bytes);
  is_zero = true;
  const int64_t last = first + count;
  for (size_t i = next; i < rows->size(); ++i) {
    const auto& [row, position] = (*rows)[i];
    const int64_t begin = std::max(row * width, first);
    const int64_t end = std::min((row + 1) * width, last);
    if (begin >= last) break;
    if ((row + 1) * width <= last) next = i + 1;
    BlockOperand value{
        values + (position * width + begin - row * width) * how.bytes, false};
    if (how.apply != nullptr) {
      how.apply(&value, applied, end - begin);
      value.data = applied;
    }
    char* const sum = block + (begin - first) * how.bytes;
    const BlockOperand both[] = {{sum, false}, value};
    how.add(both, sum, end - begin);
    is_zero = false;
  }
}

void CompiledUpdate::Frame::Run(int64_t first, int64_t count, Ahead* ahead) {
  for (Sum& sum : sums_) sum.Run(first, count, applied_);
  for (const Step& step : steps_) {
    ahead->Ask();
    step.function(step.operands, step.output, count);
  }
}

void CompiledUpdate::Frame::GoToNextBlock() {
  for (Step& step : steps_) {
    for (int i = 0; i < kMostOperands; ++i) {
      step.operands[i].data =
          static_cast<const char*>(step.operands[i].data) + step.strides[i];
    }
    step.output = static_cast<char*>(step.output) + step.output_stride;
  }
}

void CompiledUpdate::Run(const ProgramMemory& memory, int64_t begin,
                         int64_t end) const {
  const int64_t first = begin * kBlockElements;
  const int64_t last = std::min(end * kBlockElements, size_);
  Frame frame(*this, memory, first);
  Ahead ahead(*this, memory, frame);
  for (int64_t element = first; element < last; element += kBlockElements) {
    if (element > first) frame.GoToNextBlock();
    const int64_t next = element + kBlockElements;
    ahead.Begin(next, std::min(kBlockElements, last - next));
    frame.Run(element, std::min(kBlockElements, last - element), &ahead);
  }
}

}  // namespace tf_fuse
