// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "passes/view/partitioner_names.h"

#include <cctype>
#include <string_view>

#include "absl/strings/strip.h"

namespace tf_fuse {

namespace {

bool ConsumeDigits(std::string_view* text) {
  size_t digits = 0;
  while (digits < text->size() &&
         std::isdigit(static_cast<unsigned char>((*text)[digits]))) {
    ++digits;
  }
  text->remove_prefix(digits);
  return digits > 0;
}

}  // namespace

std::string SourceOfTensorName(const std::string& tensor_name) {
  std::string_view rest = tensor_name;
  if (!absl::ConsumePrefix(&rest, "edge_") || !ConsumeDigits(&rest) ||
      !absl::ConsumePrefix(&rest, "_")) {
    return "";
  }
  return std::string(rest);
}

// The partitioner names what it makes after the node whose value it handles:
// the master appends "_S" and a number, a worker "_G" and a number, and
// "/ctrl" stands in the name of the constant that is sent for a control edge.
bool IsMadeByPartitioner(const tensorflow::Node& node,
                         const std::string& source) {
  std::string_view rest = node.name();
  if (!absl::ConsumePrefix(&rest, source) || rest.empty()) return false;
  while (!rest.empty()) {
    if (absl::ConsumePrefix(&rest, "/ctrl")) continue;
    if (!absl::ConsumePrefix(&rest, "_S") &&
        !absl::ConsumePrefix(&rest, "_G")) {
      return false;
    }
    if (!ConsumeDigits(&rest)) return false;
  }
  return true;
}

}  // namespace tf_fuse
