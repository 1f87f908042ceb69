#include "fs/control/server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "io/control_message.h"
#include "io/fd.h"

namespace ckptfs::fs {
namespace {

using nlohmann::json;
using Pace = ControlServer::Pace;

class ControlServerTest : public testing::Test {
 protected:
  ControlServerTest() {
    std::array<char, 32> name{"/tmp/ckptfs-control-XXXXXX"};
    folder_ = mkdtemp(name.data());
    path_ = folder_ + "/run/test.sock";
  }
  ~ControlServerTest() override { std::filesystem::remove_all(folder_); }

  void SetUp() override {
    server_ = std::make_unique<ControlServer>(path_);
    server_->add("echo", Pace::quick, [](const Peer&, const json& arguments) -> Result<json> { return arguments; });
    server_->add("fail", Pace::quick, [](const Peer&, const json&) -> Result<json> { return Error(EEXIST, "words"); });
    server_->add("typed", Pace::slow, [](const Peer&, const json& arguments) -> Result<json> {
      return json(arguments.at("tag").get<std::string>());
    });
    server_->add("who", Pace::quick, [](const Peer& peer, const json&) -> Result<json> {
      return json{{"uid", peer.credentials.uid}, {"gid", peer.credentials.gid}, {"pid", peer.pid}};
    });
    server_->add("wait", Pace::slow, [this](const Peer&, const json&) -> Result<json> {
      entered_.set_value();
      released_.get_future().wait();
      return json("done");
    });
  }

  Result<json> request(const std::string& command, const json& arguments = json::object()) {
    TRY_ASSIGN(io::ControlReply reply, io::control_request(path_, command, arguments));
    return std::move(reply.result);
  }
  io::Fd connect() {
    io::Fd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path_.c_str());
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  static std::string read_line(int fd) {
    std::string line;
    for (char c = 0; ::read(fd, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  static void send_all(int fd, const std::string& text) {
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
  }

  std::string folder_, path_;
  std::promise<void> entered_, released_;
  std::unique_ptr<ControlServer> server_;
};

TEST_F(ControlServerTest, AnswersWithTheResult) {
  ASSERT_TRUE(server_->start());
  const auto reply = request("echo", {{"a", 1}, {"b", "grün\n"}});
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply.value(), (json{{"a", 1}, {"b", "grün\n"}}));
}

TEST_F(ControlServerTest, ErrorsCarryErrnoAndWords) {
  ASSERT_TRUE(server_->start());
  const auto reply = request("fail");
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().errno_value(), EEXIST);
  EXPECT_EQ(reply.error().message(), "words");
  EXPECT_EQ(request("no such").error().errno_value(), EOPNOTSUPP);
}

TEST_F(ControlServerTest, ArgumentsOfTheWrongTypeAreAnError) {
  ASSERT_TRUE(server_->start());
  EXPECT_EQ(request("typed", {{"tag", 5}}).error().errno_value(), EINVAL);
  EXPECT_EQ(request("typed").error().errno_value(), EINVAL);
  EXPECT_EQ(request("typed", {{"tag", "t"}}).value(), "t");
  EXPECT_EQ(request("echo", json::array({1})).error().errno_value(), EINVAL);
}

TEST_F(ControlServerTest, TellsWhoAsks) {
  ASSERT_TRUE(server_->start());
  const auto reply = request("who");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply.value()["uid"], getuid());
  EXPECT_EQ(reply.value()["gid"], getgid());
  EXPECT_EQ(reply.value()["pid"], getpid());
}

TEST_F(ControlServerTest, EveryUserMayConnect) {
  ASSERT_TRUE(server_->start());
  struct stat st {};
  ASSERT_EQ(::stat(path_.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0666u);
  ASSERT_EQ(::stat((folder_ + "/run").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0755u);
}

TEST_F(ControlServerTest, SeveralRequestsOnOneConnectionAreAnsweredInOrder) {
  ASSERT_TRUE(server_->start());
  const io::Fd fd = connect();
  send_all(fd.get(),
           "{\"command\":\"echo\",\"arguments\":{\"n\":1}}\n{\"command\":\"typed\",\"arguments\":{\"tag\":\"2\"}}\n");
  send_all(fd.get(), "not json\n{\"command\":\"echo\"}\n");
  EXPECT_EQ(json::parse(read_line(fd.get()))["result"]["n"], 1);
  EXPECT_EQ(json::parse(read_line(fd.get()))["result"], "2");
  EXPECT_EQ(json::parse(read_line(fd.get()))["errno"], EINVAL);
  EXPECT_EQ(json::parse(read_line(fd.get()))["ok"], true);
}

TEST_F(ControlServerTest, ASlowCommandHoldsNobodyUp) {
  ASSERT_TRUE(server_->start());
  auto slow = std::async(std::launch::async, [&] { return request("wait"); });
  entered_.get_future().wait();
  EXPECT_TRUE(request("echo"));
  EXPECT_EQ(request("typed", {{"tag", "meanwhile"}}).value(), "meanwhile");
  released_.set_value();
  EXPECT_EQ(slow.get().value(), "done");
}

TEST_F(ControlServerTest, StopWaitsForWhatRunsAndSendsItsReply) {
  ASSERT_TRUE(server_->start());
  const io::Fd idle = connect();
  auto slow = std::async(std::launch::async, [&] { return request("wait"); });
  entered_.get_future().wait();
  auto stopped = std::async(std::launch::async, [&] { server_->stop(); });
  EXPECT_EQ(read_line(idle.get()), "");  // the connection is closed, so stop() has begun
  EXPECT_FALSE(std::filesystem::exists(path_));
  released_.set_value();
  stopped.get();
  EXPECT_EQ(slow.get().value(), "done");
}

TEST_F(ControlServerTest, TooLongARequestIsRefused) {
  ASSERT_TRUE(server_->start());
  const io::Fd fd = connect();
  std::thread sender([&] { send_all(fd.get(), std::string((1 << 20) + 4096, 'x')); });
  const std::string line = read_line(fd.get());
  EXPECT_EQ(read_line(fd.get()), "");
  ::shutdown(fd.get(), SHUT_RDWR);
  sender.join();
  // The server closes without reading further, so the reply may be lost. The connection must not serve another request.
  if (!line.empty()) {
    EXPECT_EQ(json::parse(line)["errno"], EMSGSIZE);
  }
  EXPECT_TRUE(request("echo"));
}

TEST_F(ControlServerTest, WhatNoRequestIsIsRefused) {
  ASSERT_TRUE(server_->start());
  std::string many = "0";
  while (many.size() < 200000) many += ",{}";
  for (const std::string& value : {std::string(100000, '[') + std::string(100000, ']'), "[" + many + "]",
                                   "\"" + std::string(200000, 'x') + "\""}) {
    const io::Fd fd = connect();
    send_all(fd.get(), R"({"command":"echo","arguments":{"a":)" + value + "}}\n{\"command\":\"echo\"}\n");
    EXPECT_EQ(json::parse(read_line(fd.get()))["errno"], EMSGSIZE);
    EXPECT_EQ(json::parse(read_line(fd.get()))["ok"], true);
  }
}

TEST_F(ControlServerTest, OneUserCannotTakeAllConnections) {
  ASSERT_TRUE(server_->start());
  std::vector<io::Fd> held;
  for (int i = 0; i < 64; ++i) held.push_back(connect());
  const io::Fd refused = connect();
  EXPECT_EQ(json::parse(read_line(refused.get()))["errno"], EUSERS);
  // The request is larger than the socket's buffer, so the client is still sending when the server has answered and
  // closed.
  EXPECT_EQ(request("echo", {{"a", std::string(250000, 'x')}}).error().errno_value(), EUSERS);
  held.clear();
  // The server notices the closed connections some time later.
  for (int i = 0; i < 1000 && !request("echo"); ++i) std::this_thread::yield();
  EXPECT_TRUE(request("echo"));
}

TEST_F(ControlServerTest, AStaleSocketIsReplacedAndALiveOneIsNot) {
  std::filesystem::create_directories(folder_ + "/run");
  {
    const io::Fd dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path_.c_str());
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path_));
  ASSERT_TRUE(server_->start());
  ControlServer second(path_);
  const auto refused = second.start();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value(), EADDRINUSE);
  EXPECT_TRUE(request("echo"));  // the failed start did not remove the socket
}

TEST_F(ControlServerTest, TheSocketIsRemovedAtTheEnd) {
  ASSERT_TRUE(server_->start());
  server_->stop();
  server_->stop();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(request("echo").error().errno_value(), ENOENT);
}

}  // namespace
}  // namespace ckptfs::fs
