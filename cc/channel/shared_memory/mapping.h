// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Maps memory that processes of one host share. It has no name: a descriptor
// goes from process to process, and the kernel frees the memory when the last
// of them has unmapped it or died. So a crash leaves nothing behind. A child
// that is forked does not have it.

#ifndef TF_FUSE_CC_CHANNEL_SHARED_MEMORY_MAPPING_H_
#define TF_FUSE_CC_CHANNEL_SHARED_MEMORY_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace tf_fuse {

class SharedMemory {
 public:
  // Makes some, writable by this process alone (where the kernel is 5.1 or
  // newer), of a size that cannot change any more: a reader would die of
  // SIGBUS. Huge pages where the system allows them for shared memory. Errors:
  // ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(size_t bytes);

  // Maps another process' memory for reading. Takes `fd`. Errors:
  // InvalidArgument if it is not of that size, or might shrink.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Map(int fd,
                                                           size_t bytes);

  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  // A number at `offset`, a multiple of 8, that says whose bytes lie in a part
  // of the memory. The owner stamps before it writes there; a reader that finds
  // the stamp after it has read has read what was written under it (a seqlock).
  void Stamp(uint64_t offset, uint64_t number);
  bool HasStamp(uint64_t offset, uint64_t number) const;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_; }

 private:
  SharedMemory(int fd, char* data, size_t size)
      : fd_(fd), data_(data), size_(size) {}

  const int fd_;  // -1 after Map().
  char* const data_;
  const size_t size_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_SHARED_MEMORY_MAPPING_H_
