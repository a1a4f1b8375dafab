// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/shared_memory/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "channel/socket/descriptors.h"

// Newer than some C libraries.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace tf_fuse {

namespace {

constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status MappingError(const char* what, size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory of ", bytes, " bytes: ", what,
                   " failed: ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(
    size_t bytes) {
  const int fd = OpenDescriptor(
      [] { return memfd_create("tf_fuse", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (fd < 0) return MappingError("memfd_create", bytes);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const absl::Status status = MappingError("ftruncate", bytes);
    CloseDescriptor(fd);
    return status;
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const absl::Status status = MappingError("mmap", bytes);
    CloseDescriptor(fd);
    return status;
  }
  // Advice: systems that have none for shared memory refuse it, and it works.
  (void)madvise(data, bytes, MADV_HUGEPAGE);
  (void)madvise(data, bytes, MADV_DONTFORK);
  if (fcntl(fd, F_ADD_SEALS, kFixedSize) != 0) {
    const absl::Status status = MappingError("F_ADD_SEALS", bytes);
    munmap(data, bytes);
    CloseDescriptor(fd);
    return status;
  }
  // Older kernels do not know it; then a peer of the same user could write.
  (void)fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(fd, static_cast<char*>(data), bytes));
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Map(int fd,
                                                                size_t bytes) {
  struct stat found;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &found) != 0 || seals < 0 ||
      (seals & kFixedSize) != kFixedSize || bytes == 0 ||
      static_cast<uint64_t>(found.st_size) != bytes) {
    CloseDescriptor(fd);
    return absl::InvalidArgumentError(absl::StrCat(
        "a peer's shared memory should have ", bytes,
        " bytes and a size that cannot change, but is of another kind"));
  }
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  const absl::Status status =
      data == MAP_FAILED ? MappingError("mmap", bytes) : absl::OkStatus();
  CloseDescriptor(fd);
  if (!status.ok()) return status;
  (void)madvise(data, bytes, MADV_DONTFORK);
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(-1, static_cast<char*>(data), bytes));
}

void SharedMemory::Stamp(uint64_t offset, uint64_t number) {
  reinterpret_cast<std::atomic<uint64_t>*>(data_ + offset)
      ->store(number, std::memory_order_relaxed);
  // A full one: what follows may be stores that bypass the caches.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool SharedMemory::HasStamp(uint64_t offset, uint64_t number) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return reinterpret_cast<const std::atomic<uint64_t>*>(data_ + offset)
             ->load(std::memory_order_relaxed) == number;
}

SharedMemory::~SharedMemory() {
  munmap(data_, size_);
  if (fd_ >= 0) CloseDescriptor(fd_);
}

}  // namespace tf_fuse
