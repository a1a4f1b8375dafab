// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Memory that is written for the first time costs more than the copy that
// writes it: the kernel makes each page when it is touched.

#ifndef TF_FUSE_CC_BASE_RECYCLED_MEMORY_H_
#define TF_FUSE_CC_BASE_RECYCLED_MEMORY_H_

#include <cstddef>
#include <memory>

namespace tf_fuse {

// Lets the kernel back memory that is to be written with huge pages, where it
// is large and the system allows that. Changes nothing that can be read.
void AdviseHugePages(void* data, size_t bytes);

// A buffer that was used before, if there is one of that size; some
// are kept. Aligned as tensors are. Null if memory is exhausted.
std::shared_ptr<char> RecycledBuffer(size_t bytes);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_BASE_RECYCLED_MEMORY_H_
