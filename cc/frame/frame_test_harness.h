// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A test library of one page, so that the tests of the codec build on a machine
// that has a compiler and nothing else.

#ifndef TF_FUSE_CC_FRAME_FRAME_TEST_HARNESS_H_
#define TF_FUSE_CC_FRAME_FRAME_TEST_HARNESS_H_

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "frame/frame_testing.h"

namespace tf_fuse {
namespace frame {
namespace testing {

struct Test {
  const char* name;
  void (*function)();
};

// All tests of the program, and the number of failed expectations so far.
std::vector<Test>& AllTests();
int& Failures();
// Counts and prints one failed expectation.
void Report(const char* file, int line, const std::string& text);

// One slot of every sort, and the frame of them.
std::vector<SlotSpec> SmallSpecs();
std::vector<uint8_t> SmallFrame();

// Slots of strings and serialized values, and the frame of them.
std::vector<SlotSpec> StringsSpecs();
std::vector<uint8_t> StringsFrame();

inline std::string Show(std::string_view s) {
  return "\"" + std::string(s) + "\"";
}
inline std::string Show(ErrorKind kind) { return ErrorKindName(kind); }
template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
std::string Show(T value) {
  return std::to_string(value);
}

#define FRAME_TEST(name)                                            \
  void name();                                                      \
  const bool name##_registered = [] {                               \
    ::tf_fuse::frame::testing::AllTests().push_back({#name, name}); \
    return true;                                                    \
  }();                                                              \
  void name()

#define EXPECT_EQ(actual, expected)                                \
  do {                                                             \
    const auto& actual_value = (actual);                           \
    const auto& expected_value = (expected);                       \
    if (!(actual_value == expected_value)) {                       \
      Report(__FILE__, __LINE__,                                   \
             #actual " is " + Show(actual_value) + ", expected " + \
                 Show(expected_value));                            \
    }                                                              \
  } while (false)

#define EXPECT_TRUE(condition)                                            \
  do {                                                                    \
    if (!(condition)) Report(__FILE__, __LINE__, #condition " is false"); \
  } while (false)

#define EXPECT_OK(expression)                                                \
  do {                                                                       \
    const Status status_value = (expression);                                \
    if (!status_value.ok()) {                                                \
      Report(__FILE__, __LINE__, #expression ": " + status_value.message()); \
    }                                                                        \
  } while (false)

}  // namespace testing
}  // namespace frame
}  // namespace tf_fuse

#endif  // TF_FUSE_CC_FRAME_FRAME_TEST_HARNESS_H_
