// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What nodes do with the rows of marked variables, and with their gradients.

#ifndef TF_FUSE_CC_PASSES_COMPRESS_NODE_ROLES_H_
#define TF_FUSE_CC_PASSES_COMPRESS_NODE_ROLES_H_

#include <string>
#include <utility>

#include "tensorflow/core/graph/graph.h"

namespace tf_fuse {

// Of an _Arg: what tf_fuse/parameter_server/lookups/mark_compressed.py says of
// the variable whose handle it is. Of a TfFuse>UnpackHandles: a list of these,
// "" for what is not a variable of float32 that is trained.
inline constexpr char kCompressAttr[] = "_tf_fuse_compress";
// The variable is trained, and the program leaves it out.
inline constexpr char kNotCompressed[] = "float32";
// Followed by a space and what identifies the variable in its job.
inline constexpr char kCompressedPrefix[] = "bfloat16 ";

bool IsWorker(const std::string& device);

// They hand on their first input's values.
bool HandsOn(const tensorflow::Node& node);

// They compute with no element: each one that they return is one of an input,
// or a constant. (Cast, which hands on, is among them.) What gets a rounded
// value from them gets it as if it had got their input.
bool Moves(const tensorflow::Node& node);

// Whether an edge can carry values of rows. (Variants hold lists of tensors;
// integers that depend on rows, such as those of an argmax, are not rounded.)
bool CarriesValues(const tensorflow::Edge& edge);

// Rows of their first input, or sums of them.
bool PicksRows(const tensorflow::Node& node);

bool EntersOrLeavesLoop(const tensorflow::Node& node);

// Which output of the graph's arguments a handle is; nullptr if it is unknown.
using Handle = std::pair<const tensorflow::Node*, int>;

Handle HandleOf(const tensorflow::Node& node, int input);

// The mark of the variable whose handle an input is; empty if it has none.
std::string MarkOfInput(const tensorflow::Node& node, int input);

bool IsCompressed(const std::string& mark);

// Whether an output is rows of a variable that is marked, on one device.
bool IsRows(const tensorflow::Node* node, const std::string& device);

// Whether a node gets whole numbers that a step computes.
bool GetsNumbersOfStep(const tensorflow::Node& node);

// Updates that add to a variable, or compute with what they get.
bool IsUpdate(const std::string& type);

// Updates that store what they get.
bool IsAssignment(const std::string& type);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_COMPRESS_NODE_ROLES_H_
