// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Chooses the algorithm of a reduction. All members decide by the same cards,
// so they decide alike.

#ifndef TF_FUSE_CC_COLLECTIVES_REDUCE_CHOOSE_ALGORITHM_H_
#define TF_FUSE_CC_COLLECTIVES_REDUCE_CHOOSE_ALGORITHM_H_

#include <cstdint>

#include "tensorflow/core/framework/collective.h"

namespace tf_fuse {

// Bits of PeerCard::algorithms.
inline constexpr uint32_t kDirectAlgorithm = 1;

// The name under which the direct algorithm is registered.
inline constexpr char kDirectReduce[] = "TfFuseDirectReduce";

// By the environment variable TF_FUSE_COLLECTIVE_ALGORITHM: "direct" (the
// default) or "ring".
uint32_t OwnAlgorithms();

// Replaces the ring of TensorFlow by the direct algorithm, which gives the same
// bits, where all members can take part.
void ChooseAlgorithm(tensorflow::CollectiveParams* params);

// The size of pieces that tensors travel in, between the members of a group.
int64_t PieceBytes(const tensorflow::CollGroupParams& group);

// Seconds that an instance with an algorithm of ours may take, 0: any. Those in
// its parameters are more: TensorFlow's own watchdog does not know who is late.
float OwnTimeoutSeconds(const tensorflow::CollInstanceParams& instance);

// Marks an instance as one with an algorithm of ours.
void TakeOverTimeout(tensorflow::CollInstanceParams* instance);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REDUCE_CHOOSE_ALGORITHM_H_
