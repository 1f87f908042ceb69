#include "io/control_message.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "io/fd.h"
#include "io/retry.h"

namespace ckptfs::io {

namespace {

using nlohmann::json;

Result<Fd> connect_to(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path)
    return Error(ENAMETOOLONG, socket_path + ": too long for a socket");
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  Fd connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection) return last_error("socket");
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (retry_interrupted([&] { return ::connect(connection.get(), generic, sizeof address); }) != 0) {
    return last_error(socket_path);
  }
  return connection;
}

Result<> send_all(int fd, const std::string& line) {
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t n =
        retry_interrupted([&] { return ::send(fd, line.data() + done, line.size() - done, MSG_NOSIGNAL); });
    if (n < 0) return last_error("sending to the daemon");
    done += static_cast<size_t>(n);
  }
  return success();
}

// The bytes up to the first newline.
Result<std::string> receive_line(int fd) {
  std::string line;
  char buffer[65536];
  for (;;) {
    const ssize_t n = retry_interrupted([&] { return ::recv(fd, buffer, sizeof buffer, 0); });
    if (n < 0) return last_error("receiving from the daemon");
    if (n == 0) return Error(ECONNRESET, "the daemon closed the connection without an answer (see its log)");
    const char* end = static_cast<const char*>(std::memchr(buffer, '\n', static_cast<size_t>(n)));
    line.append(buffer, end == nullptr ? static_cast<size_t>(n) : static_cast<size_t>(end - buffer));
    if (line.size() > kMaximumMessage) return Error(EMSGSIZE, "the daemon's answer is too long");
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

Result<json> decode_reply(const std::string& line) {
  try {
    json reply = json::parse(line);
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

Result<json> control_request(const std::string& socket_path, const std::string& command, const json& arguments) {
  TRY_ASSIGN(const std::string request, encode_request(command, arguments));
  TRY_ASSIGN(const Fd connection, connect_to(socket_path));
  TRY(send_all(connection.get(), request));
  TRY_ASSIGN(const std::string line, receive_line(connection.get()));
  return decode_reply(line);
}

}  // namespace ckptfs::io
