#include "io/control_message.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

using nlohmann::json;
using testing::ScratchFolder;

// A server for one connection: it reads a line, sends these pieces, and closes.
class Server {
 public:
  explicit Server(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path().c_str());
    listening_ = Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listening_.get(), 1), 0);
    thread_ = std::jthread([this] { serve(); });
  }

  std::string path() const { return folder_.path("socket"); }
  // Returns the request that it received. Call it after the reply.
  json request() {
    thread_.join();
    return json::parse(line_);
  }

 private:
  void serve() {
    const Fd connection(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char next = 0;
    while (::recv(connection.get(), &next, 1, 0) == 1 && next != '\n') line_ += next;
    for (const std::string& piece : pieces_) {
      if (::send(connection.get(), piece.data(), piece.size(), MSG_NOSIGNAL) < 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  ScratchFolder folder_;
  std::vector<std::string> pieces_;
  std::string line_;
  Fd listening_;
  std::jthread thread_;
};

Result<json> ask(const Server& server, const json& arguments = json::object()) {
  TRY_ASSIGN(ControlReply reply, control_request(server.path(), "status", arguments));
  return std::move(reply.result);
}

TEST(ControlRequestTest, SendsALineAndReturnsTheResult) {
  Server server({"{\"ok\": true, \"result\": {\"open_files\": 3}}\n"});
  const auto reply = control_request(server.path(), "save", {{"tag", "a\nb"}});
  ASSERT_OK(reply);
  EXPECT_EQ(reply.value().result, (json{{"open_files", 3}}));
  EXPECT_EQ(server.request(), (json{{"command", "save"}, {"arguments", {{"tag", "a\nb"}}}}));
}

TEST(ControlRequestTest, AReplyInPieces) {
  const std::string text(200'000, 'x');
  Server server({"{\"ok\": tr", "ue, \"result\": \"", text, "\"}", "\n"});
  const auto reply = ask(server);
  ASSERT_OK(reply);
  EXPECT_EQ(reply.value(), text);
}

TEST(ControlRequestTest, AReplyWithoutResult) {
  Server server({"{\"ok\": true}\n"});
  const auto reply = ask(server);
  ASSERT_OK(reply);
  EXPECT_TRUE(reply.value().is_null());
}

TEST(ControlRequestTest, AnErrorKeepsErrnoAndWords) {
  Server server({"{\"ok\": false, \"errno\": 17, \"error\": \"step7 is there\"}\n"});
  const auto reply = ask(server);
  EXPECT_ERRNO(EEXIST, reply);
  EXPECT_EQ(reply.error().message(), "step7 is there");
}

TEST(ControlRequestTest, AnErrorIsNeverSuccess) {
  Server server({"{\"ok\": false, \"errno\": 0}\n"});
  EXPECT_ERRNO(EIO, ask(server));
}

TEST(ControlRequestTest, NonsenseIsAnError) {
  for (const char* nonsense : {"hello\n", "[]\n", "{}\n", "{\"ok\": 1}\n", "{\"ok\": false, \"errno\": \"x\"}\n"}) {
    Server server({nonsense});
    EXPECT_ERRNO(EBADMSG, ask(server)) << nonsense;
  }
}

TEST(ControlRequestTest, AHangUpIsAnError) {
  Server silent({});
  EXPECT_ERRNO(ECONNRESET, ask(silent));
  Server halfway({"{\"ok\": true, \"result\""});
  EXPECT_ERRNO(ECONNRESET, ask(halfway));
}

TEST(ControlRequestTest, NobodyListens) {
  const ScratchFolder folder;
  EXPECT_ERRNO(ENOENT, control_request(folder.path("none"), "status", {}));
  std::string path;
  {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path = folder.path("dead");
    std::strcpy(address.sun_path, path.c_str());
    const Fd bound(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(bound.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  EXPECT_ERRNO(ECONNREFUSED, control_request(path, "status", {}));
  EXPECT_ERRNO(ENAMETOOLONG, control_request(std::string(200, 'p'), "status", {}));
}

TEST(ControlRequestTest, WhatCannotBeSentIsRefusedHere) {
  EXPECT_ERRNO(EILSEQ, control_request("/no/such/socket", "save", {{"tag", "\xff"}}));
  EXPECT_ERRNO(E2BIG, control_request("/no/such/socket", "save", {{"tag", std::string(kMaximumRequest, 'x')}}));
}

}  // namespace
}  // namespace ckptfs::io
