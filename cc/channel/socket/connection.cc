// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "channel/socket/connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/base/internal/endian.h"
#include "absl/strings/str_cat.h"
#include "channel/socket/descriptors.h"
#include "channel/socket/keep_alive.h"

namespace tf_fuse {

namespace {

constexpr uint32_t kMaxMessageBytes = 64 << 10;
// One look at a socket reads so much at most: others wait meanwhile.
constexpr int kReadsAtOnce = 16;
constexpr size_t kDropBytes = 64 << 10;

bool IsUnix(int fd) {
  sockaddr_storage address;
  socklen_t size = sizeof(address);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
         address.ss_family == AF_UNIX;
}

// Closes all others: a message has one at most, but the padding of the control
// data has room for two. -1 if there is none.
int LastDescriptorIn(msghdr* message) {
  int last = -1;
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      if (last >= 0) close(last);
      std::memcpy(&last, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
    }
  }
  return last;
}

}  // namespace

absl::Status LostChannel(const char* call, int error) {
  return absl::UnavailableError(absl::StrCat(
      "the data channel was lost: ", call, ": ", std::strerror(error)));
}

absl::StatusCode CodeOfPeer(int code) {
  constexpr int kLast = static_cast<int>(absl::StatusCode::kUnauthenticated);
  return code > 0 && code <= kLast ? static_cast<absl::StatusCode>(code)
                                   : absl::StatusCode::kUnknown;
}

std::shared_ptr<Connection> Connection::Create(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const bool is_unix = IsUnix(fd);
  if (!is_unix) {
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    KeepAlive(fd);
  }
  return std::shared_ptr<Connection>(new Connection(fd, is_unix));
}

Connection::~Connection() {
  if (in_.fd >= 0) CloseDescriptor(in_.fd);
  CloseDescriptor(fd_);
}

absl::Status Connection::Start(std::shared_ptr<Receiver> receiver) {
  receiver_ = std::move(receiver);
  in_.wanted = kChannelHeaderBytes;
  const absl::Status status = EventLoop::For(fd_)->Add(fd_, shared_from_this());
  if (!status.ok()) receiver_ = nullptr;  // It may hold this.
  return status;
}

int64_t Connection::PeerUser() const {
  ucred found;
  socklen_t size = sizeof(found);
  if (!is_unix_ ||
      getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &found, &size) != 0) {
    return -1;
  }
  return found.uid;
}

void Connection::Close(const absl::Status& status) {
  {
    absl::MutexLock lock(&out_mu_);
    if (!closed_.ok()) return;
    closed_ = status;
  }
  // The loop sees it, and ends the connection on its own thread.
  shutdown(fd_, SHUT_RDWR);
}

void Connection::OnReadable() {
  if (receiver_ == nullptr) return;
  for (int i = 0; i < kReadsAtOnce; ++i) {
    absl::StatusOr<bool> more = Read();
    if (!more.ok()) return Shut(more.status());
    if (!*more) return;
  }
}

absl::StatusOr<bool> Connection::Read() {
  {
    absl::MutexLock lock(&out_mu_);
    if (!closed_.ok()) return closed_;
  }
  return in_.in_bytes ? ReadBytes() : ReadHead();
}

absl::StatusOr<int64_t> Connection::Receive(void* data, size_t size) {
  const ssize_t read = recv(fd_, data, size, 0);
  return Received(read, errno);
}

// A fork must find a descriptor listed, or not find it.
absl::StatusOr<int64_t> Connection::ReceiveHead(void* data, size_t size) {
  if (!is_unix_) return Receive(data, size);
  ssize_t read = 0;
  int error = 0;
  const int fd = OpenDescriptor([&] {
    iovec part = {data, size};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    read = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
    error = errno;
    return read < 0 ? -1 : LastDescriptorIn(&message);
  });
  if (fd >= 0) {
    if (in_.fd >= 0) CloseDescriptor(in_.fd);
    in_.fd = fd;
  }
  return Received(read, error);
}

absl::StatusOr<int64_t> Connection::Received(ssize_t read, int error) const {
  if (read < 0) {
    if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return 0;
    return LostChannel("recvmsg", error);
  }
  if (read == 0) {
    return absl::UnavailableError(
        "the data channel was closed by the other task");
  }
  return read;
}

absl::StatusOr<bool> Connection::ReadHead() {
  const size_t have = in_.head.size();
  in_.head.resize(in_.wanted);
  absl::StatusOr<int64_t> read =
      ReceiveHead(&in_.head[have], in_.wanted - have);
  if (!read.ok()) return read.status();
  in_.head.resize(have + *read);
  if (*read == 0) return false;
  if (in_.head.size() < in_.wanted) return true;
  if (!in_.has_header) {
    const uint32_t magic = absl::little_endian::Load32(&in_.head[0]);
    const uint32_t size = absl::little_endian::Load32(&in_.head[4]);
    if (magic != kChannelMagic || size > kMaxMessageBytes) {
      return absl::DataLossError(absl::StrCat(
          "data channel: malformed message header: magic ", absl::Hex(magic),
          ", ", size, " bytes; expected magic ", absl::Hex(kChannelMagic),
          " and at most ", kMaxMessageBytes, " bytes"));
    }
    in_.bytes = absl::little_endian::Load64(&in_.head[8]);
    in_.has_header = true;
    in_.wanted += size;
    if (size > 0) return true;
  }
  absl::Status status = HeadIsComplete();
  if (!status.ok()) return status;
  return true;
}

absl::Status Connection::HeadIsComplete() {
  if (!in_.message.ParseFromArray(in_.head.data() + kChannelHeaderBytes,
                                  in_.head.size() - kChannelHeaderBytes)) {
    return absl::DataLossError("data channel: a message does not parse");
  }
  if (in_.bytes == 0) return Deliver();
  absl::MutexLock lock(&in_mu_);
  absl::StatusOr<char*> destination =
      receiver_->DestinationOf(in_.message, in_.bytes);
  if (!destination.ok()) return destination.status();
  in_.destination = *destination;
  in_.in_bytes = true;
  in_.done = 0;
  return absl::OkStatus();
}

absl::StatusOr<bool> Connection::ReadBytes() {
  {
    absl::MutexLock lock(&in_mu_);
    const uint64_t left = in_.bytes - in_.done;
    char* to = in_.destination;
    uint64_t room = left;
    if (to == nullptr) {
      dropped_.resize(kDropBytes);
      to = dropped_.data();
      room = std::min<uint64_t>(left, kDropBytes);
    } else {
      to += in_.done;
    }
    absl::StatusOr<int64_t> read = Receive(to, room);
    if (!read.ok()) return read.status();
    if (*read == 0) return false;
    in_.done += *read;
    if (in_.done < in_.bytes) return true;
  }
  absl::Status status = Deliver();
  if (!status.ok()) return status;
  return true;
}

absl::Status Connection::Deliver() {
  const int fd = std::exchange(in_.fd, -1);
  const v1::ChannelMessage message = std::move(in_.message);
  const uint64_t bytes = in_.bytes;
  {
    absl::MutexLock lock(&in_mu_);
    in_ = Incoming();
    in_.wanted = kChannelHeaderBytes;
  }
  return receiver_->OnMessage(message, bytes, fd);
}

void Connection::Divert(const char* begin, uint64_t size) {
  absl::MutexLock lock(&in_mu_);
  if (in_.destination != nullptr && in_.destination >= begin &&
      in_.destination < begin + size) {
    in_.destination = nullptr;
  }
}

void Connection::Shut(const absl::Status& status) {
  std::deque<Outgoing> unsent;
  absl::Status why;
  {
    absl::MutexLock lock(&out_mu_);
    if (closed_.ok()) closed_ = status;
    why = closed_;
    unsent.swap(out_);
  }
  Finish(&unsent, why);
  const std::shared_ptr<Receiver> receiver = std::move(receiver_);
  if (receiver != nullptr) receiver->OnClosed(why);
  EventLoop::For(fd_)->Remove(fd_);  // Perhaps the last to hold this.
}

}  // namespace tf_fuse
