#include "io/control_message.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/fd.h"
#include "io/json.h"
#include "io/retry.h"

namespace ckptfs::io {

Result<Fd> connect_to(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path)
    return Error(ENAMETOOLONG, socket_path + ": too long for a socket's path");
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  Fd connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection) return last_error("socket");
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (retry_interrupted([&] { return ::connect(connection.get(), generic, sizeof address); }) != 0) {
    return last_error(socket_path);
  }
  return connection;
}

namespace {

using nlohmann::json;

// Sends the whole request. A daemon that refuses a connection answers and closes it without reading the request. So a
// closed connection is no error here: the answer can still be received.
Result<> send_request(int fd, const std::string& line) {
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t n =
        retry_interrupted([&] { return ::send(fd, line.data() + done, line.size() - done, MSG_NOSIGNAL); });
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) return success();
    if (n < 0) return last_error("sending to the daemon");
    done += static_cast<size_t>(n);
  }
  return success();
}

struct Line {
  std::string text;
  std::vector<Fd> descriptors;
};

// Takes ownership of the descriptors that came with a message.
void take_descriptors(msghdr& message, std::vector<Fd>& descriptors) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= header->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + at, sizeof number);
      descriptors.emplace_back(number);
    }
  }
}

// The bytes up to the first newline, and the descriptors that came with them.
Result<Line> receive_line(int fd) {
  Line line;
  char buffer[65536];
  alignas(cmsghdr) char control[CMSG_SPACE(kMaximumDescriptors * sizeof(int))];
  for (;;) {
    iovec part{buffer, sizeof buffer};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = retry_interrupted([&] { return ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC); });
    if (n < 0) return last_error("receiving from the daemon");
    take_descriptors(message, line.descriptors);
    if (n == 0) return Error(ECONNRESET, "the daemon closed the connection without an answer (see its log)");
    if ((message.msg_flags & MSG_CTRUNC) != 0) return Error(EMFILE, "no descriptor is left for what the daemon sent");
    const char* end = static_cast<const char*>(std::memchr(buffer, '\n', static_cast<size_t>(n)));
    line.text.append(buffer, end == nullptr ? static_cast<size_t>(n) : static_cast<size_t>(end - buffer));
    if (line.text.size() > kMaximumMessage) return Error(EMSGSIZE, "the daemon's answer is too long");
    if (end != nullptr) return line;
  }
}

Result<std::string> encode_request(const std::string& command, const json& arguments) {
  try {
    std::string line = json{{"command", command}, {"arguments", arguments}}.dump() + '\n';
    if (line.size() > kMaximumRequest) return Error(E2BIG, "the request is too long for the daemon");
    return line;
  } catch (const json::exception&) {
    return Error(EILSEQ, "an argument is not valid UTF-8, which the control socket needs");
  }
}

// No reply is nested deeper than this. Its size is limited only by kMaximumMessage.
constexpr JsonBounds kReplyBounds{.bytes = kMaximumMessage, .values = kAnyNumber, .text = kMaximumMessage, .depth = 64};

Result<json> decode_reply(const std::string& line) {
  try {
    TRY_ASSIGN(json reply, parse_json(line, kReplyBounds));
    if (!reply.at("ok").get<bool>()) {
      const int number = reply.value("errno", EIO);
      return Error(number == 0 ? EIO : number, reply.value("error", std::string()));
    }
    return reply.value("result", json());
  } catch (const json::exception&) {
    return Error(EBADMSG, "the daemon's answer is not what this version of ckptfs understands");
  }
}

}  // namespace

Result<ControlReply> control_request(const std::string& socket_path, const std::string& command,
                                     const json& arguments) {
  TRY_ASSIGN(const std::string request, encode_request(command, arguments));
  TRY_ASSIGN(const Fd connection, connect_to(socket_path));
  TRY(send_request(connection.get(), request));
  TRY_ASSIGN(Line line, receive_line(connection.get()));
  TRY_ASSIGN(json result, decode_reply(line.text));
  return ControlReply{std::move(result), std::move(line.descriptors)};
}

Result<std::string> control_socket_of(const std::string& mountpoint) {
  std::array<char, 4096> path{};
  const ssize_t length = getxattr(mountpoint.c_str(), "user.ckptfs.socket", path.data(), path.size());
  if (length >= 0) return std::string(path.data(), static_cast<size_t>(length));
  if (errno == ENOTCONN || errno == ECONNABORTED) {
    return Error(ENOTCONN, mountpoint +
                               ": its daemon is dead; mount it again (ckptfs mount replaces a dead mount), or " +
                               "take it away: ckptfs umount " + mountpoint);
  }
  return last_error(mountpoint + ": user.ckptfs.socket");
}

Result<ControlReply> ask_mount_for_files(const std::string& mountpoint, const std::string& command,
                                         const json& arguments) {
  TRY_ASSIGN(const std::string socket, control_socket_of(mountpoint));
  auto reply = control_request(socket, command, arguments);
  if (reply || (reply.error().errno_value() != ECONNREFUSED && reply.error().errno_value() != ENOENT)) return reply;
  // the command itself failed with ENOENT.
  if (::access(socket.c_str(), F_OK) == 0 && reply.error().errno_value() == ENOENT) return reply;
  return Error(reply.error().errno_value(), socket + ": nobody listens on the control socket of " + mountpoint +
                                                "; its log says why (another mount namespace has its own /run)");
}

Result<json> ask_mount(const std::string& mountpoint, const std::string& command, const json& arguments) {
  TRY_ASSIGN(ControlReply reply, ask_mount_for_files(mountpoint, command, arguments));
  return std::move(reply.result);
}

Result<size_t> send_with_descriptors(int socket, const std::string& line, const std::vector<Fd>& descriptors) {
  if (descriptors.size() > kMaximumDescriptors) return Error(E2BIG, "too many descriptors for one message");
  iovec part{const_cast<char*>(line.data()), line.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaximumDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    for (size_t at = 0; at < descriptors.size(); ++at) {
      const int number = descriptors[at].get();
      std::memcpy(CMSG_DATA(header) + at * sizeof(int), &number, sizeof number);
    }
  }
  const ssize_t sent = retry_interrupted([&] { return ::sendmsg(socket, &message, MSG_NOSIGNAL); });
  if (sent < 0) return last_error("sending to a client");
  return static_cast<size_t>(sent);
}

}  // namespace ckptfs::io
