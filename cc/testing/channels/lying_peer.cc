// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "testing/channels/lying_peer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/base/internal/endian.h"
#include "absl/time/clock.h"
#include "channel/socket/descriptors.h"

namespace tf_fuse {
namespace testing {
namespace {

constexpr uint64_t kLease = 1;
constexpr uint64_t kStampOffset = kMaxBytes - sizeof(kLease);

// Shared memory as a producer has it, or as none should.
int MemoryOf(uint64_t bytes, bool sealed) {
  const int fd = memfd_create("lies", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) std::abort();
  const uint64_t lease = kLease;
  if (pwrite(fd, &lease, sizeof(lease), kStampOffset) < 0) std::abort();
  if (sealed) fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return fd;
}

// Lends a chunk; in half of the cases the lease has ended. While the receiver
// copies the chunk, sends it again as bytes. The second half comes when the
// receiver may have answered the request.
bool SendTwice(Liar* liar, Random* random, const v1::ChunkRequest& request) {
  v1::ChannelMessage message;
  message.mutable_segment()->set_id(7);
  message.mutable_segment()->set_bytes(kMaxBytes);
  const int fd = MemoryOf(kMaxBytes, /*sealed=*/true);
  const bool sent = liar->Send(message, 0, "", fd);
  close(fd);
  if (!sent) return false;
  v1::ChunkAnswer* const answer = message.mutable_answer();
  answer->set_call(request.call());
  answer->set_segment(7);
  answer->set_segment_bytes(request.bytes());
  answer->set_lease(kLease + Below(random, 2));
  answer->set_stamp_offset(kStampOffset);
  if (!liar->Send(message, 0)) return false;
  answer->set_lease(0);
  const std::string half(request.bytes() / 2, 'y');
  if (!liar->Send(message, 2 * half.size(), half)) return false;
  absl::SleepFor(absl::Milliseconds(2));
  return liar->SendBytes(half);
}

}  // namespace

uint64_t OddNumber(Random* random, uint64_t near) {
  switch (Below(random, 8)) {
    case 0:
      return 0;
    case 1:
      return UINT64_MAX - Below(random, 3);
    case 2:
      return near + 1;
    case 3:
      return near == 0 ? 0 : near - 1;
    case 4:
      return (*random)();
    default:
      return Below(random, near + 2);
  }
}

Liar::Liar(int fd) : fd_(OpenDescriptor([fd] { return fd; })) {
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) & ~O_NONBLOCK);
  const timeval limit = {0, 20'000};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

Liar::~Liar() { CloseDescriptor(fd_); }

bool Liar::Send(const v1::ChannelMessage& message, uint64_t claimed,
                const std::string& behind, int fd, int fds) {
  std::string bytes(16, '\0');
  message.AppendToString(&bytes);
  absl::little_endian::Store32(&bytes[0], 0x31434654);
  absl::little_endian::Store32(&bytes[4], bytes.size() - 16);
  absl::little_endian::Store64(&bytes[8], claimed);
  bytes += behind;
  return SendBytes(bytes, fd, fds);
}

bool Liar::SendBytes(const std::string& bytes, int fd, int fds) {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds * sizeof(int));
    cmsghdr* const first = CMSG_FIRSTHDR(&header);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(fds * sizeof(int));
    for (int i = 0; i < fds; ++i) {
      std::memcpy(CMSG_DATA(first) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  const ssize_t sent = sendmsg(fd_, &header, MSG_NOSIGNAL);
  if (sent < 0) return false;
  for (size_t at = sent; at < bytes.size();) {
    const ssize_t more =
        send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (more <= 0) return false;
    at += more;
  }
  return true;
}

bool Liar::Read(v1::ChannelMessage* message) {
  char header[16];
  if (!ReadAll(header, sizeof(header))) return false;
  std::string text(absl::little_endian::Load32(header + 4), '\0');
  if (!ReadAll(text.data(), text.size())) return false;
  std::string behind(absl::little_endian::Load64(header + 8), '\0');
  return message->ParseFromString(text) &&
         ReadAll(behind.data(), behind.size());
}

void Liar::Drain() {
  char scratch[4096];
  while (recv(fd_, scratch, sizeof(scratch), MSG_DONTWAIT) > 0) {
  }
}

void Liar::CloseForWriting() { shutdown(fd_, SHUT_WR); }

bool Liar::ReadAll(char* data, size_t size) {
  while (size > 0) {
    const ssize_t read = recv(fd_, data, size, 0);
    if (read <= 0) return false;
    data += read;
    size -= read;
  }
  return true;
}

v1::ChannelMessage OddAnswer(Random* random, uint64_t call, uint64_t bytes) {
  v1::ChannelMessage message;
  v1::ChunkAnswer* const answer = message.mutable_answer();
  answer->set_call(Below(random, 8) == 0 ? OddNumber(random, call) : call);
  if (Below(random, 8) == 0) {
    answer->set_code(static_cast<int32_t>((*random)()));
    answer->set_text(std::string(Below(random, 100), 'x'));
  }
  answer->set_offset(Below(random, 3) == 0 ? OddNumber(random, bytes) : 0);
  if (Below(random, 2) == 0) {
    answer->set_segment(static_cast<uint32_t>(Below(random, 3)));
    answer->set_segment_offset(
        Below(random, 3) == 0 ? OddNumber(random, kMaxBytes) : 0);
    answer->set_segment_bytes(Below(random, 3) == 0 ? OddNumber(random, bytes)
                                                    : bytes);
    answer->set_lease(Below(random, 4) == 0   ? 0
                      : Below(random, 2) == 0 ? kLease
                                              : (*random)());
    answer->set_stamp_offset(
        Below(random, 3) == 0 ? OddNumber(random, kMaxBytes) : kStampOffset);
  }
  answer->set_last(Below(random, 2) == 0);
  return message;
}

v1::ChannelMessage OddCallAnswer(Random* random, uint64_t call) {
  v1::ChannelMessage message;
  v1::CallAnswer* const answer = message.mutable_call_answer();
  answer->set_call(Below(random, 8) == 0 ? OddNumber(random, call) : call);
  if (Below(random, 3) == 0) {
    answer->set_code(static_cast<int32_t>((*random)()));
    answer->set_text(std::string(Below(random, 100), 'x'));
    answer->add_payloads()->set_url(std::string(Below(random, 9), 'u'));
  }
  return message;
}

bool LieToCaller(Liar* liar, Random* random, const v1::CallRequest& request) {
  for (uint64_t lies = Below(random, 4); lies > 0; --lies) {
    const uint64_t bytes = Below(random, 4) == 0 ? OddNumber(random, kMaxAnswer)
                                                 : Below(random, kMaxAnswer);
    // What was announced may not come.
    const uint64_t there = Below(random, 16) == 0 ? 0 : bytes % (1 << 20);
    if (!liar->Send(OddCallAnswer(random, request.call()), bytes,
                    std::string(there, 'y'))) {
      return false;
    }
  }
  return true;
}

bool Lie(Liar* liar, Random* random, const v1::ChunkRequest& request) {
  switch (Below(random, 8)) {
    case 0: {
      v1::ChannelMessage message;
      const bool honest = Below(random, 4) != 0;
      message.mutable_segment()->set_id(Below(random, 3));
      message.mutable_segment()->set_bytes(
          honest ? kMaxBytes : OddNumber(random, kMaxBytes));
      const int fd = Below(random, 8) == 0
                         ? -1
                         : MemoryOf(kMaxBytes, Below(random, 8) != 0);
      const bool sent =
          liar->Send(message, 0, "", fd, Below(random, 8) == 0 ? 2 : 1);
      if (fd >= 0) close(fd);
      return sent;
    }
    case 1: {
      std::string noise(Below(random, 64), '\0');
      for (char& c : noise) c = static_cast<char>((*random)());
      return Below(random, 32) != 0 || liar->SendBytes(noise);
    }
    case 2:
      return SendTwice(liar, random, request);
    case 3: {
      v1::ChannelMessage message;
      message.mutable_hello()->set_token("again");
      return Below(random, 16) != 0 || liar->Send(message, 0);
    }
    default: {
      const v1::ChannelMessage message =
          OddAnswer(random, request.call(), request.bytes());
      if (Below(random, 2) == 0) return liar->Send(message, 0);
      const uint64_t bytes = Below(random, request.bytes() + 2);
      // What was announced may not come.
      const uint64_t there =
          Below(random, 16) == 0 ? Below(random, bytes + 1) : bytes;
      return liar->Send(message, bytes, std::string(there, 'y'));
    }
  }
}

}  // namespace testing
}  // namespace tf_fuse
