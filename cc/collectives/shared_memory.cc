// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

// Newer than some C libraries.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace tf_fuse {

namespace {

constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status Failed(const char* what, size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory of ", bytes, " bytes: ", what,
                   " failed: ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(
    size_t bytes) {
  const int fd = memfd_create("tf_fuse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Failed("memfd_create", bytes);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const absl::Status status = Failed("ftruncate", bytes);
    close(fd);
    return status;
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const absl::Status status = Failed("mmap", bytes);
    close(fd);
    return status;
  }
  // Advice: systems that have none for shared memory refuse it, and it works.
  (void)madvise(data, bytes, MADV_HUGEPAGE);
  if (fcntl(fd, F_ADD_SEALS, kFixedSize) != 0) {
    const absl::Status status = Failed("F_ADD_SEALS", bytes);
    munmap(data, bytes);
    close(fd);
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
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(
        "a peer's shared memory should have ", bytes,
        " bytes and a size that cannot change, but is of another kind"));
  }
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  const absl::Status status =
      data == MAP_FAILED ? Failed("mmap", bytes) : absl::OkStatus();
  close(fd);
  if (!status.ok()) return status;
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(-1, static_cast<char*>(data), bytes));
}

SharedMemory::~SharedMemory() {
  munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace tf_fuse
