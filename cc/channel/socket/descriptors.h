// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Opens and closes the descriptors of data channels. A forked child that runs
// no other program closes them: else it would keep connections and memory of a
// parent that has ended, and peers would wait for what nobody sends.

#ifndef TF_FUSE_CC_CHANNEL_SOCKET_DESCRIPTORS_H_
#define TF_FUSE_CC_CHANNEL_SOCKET_DESCRIPTORS_H_

#include "absl/functional/function_ref.h"

namespace tf_fuse {

// Returns what `open` returns: a new descriptor, or -1. `open` does not block,
// since forks wait for it.
int OpenDescriptor(absl::FunctionRef<int()> open);

// Does nothing in a child that was forked since.
void CloseDescriptor(int fd);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_SOCKET_DESCRIPTORS_H_
