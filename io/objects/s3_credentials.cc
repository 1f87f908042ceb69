#include "io/objects/s3_credentials.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <sstream>

#include "io/core_files.h"
#include "io/fd.h"
#include "io/json.h"
#include "io/log.h"
#include "io/printable.h"
#include "io/process.h"
#include "io/text.h"

namespace ckptfs::io {
namespace {

using SystemClock = std::chrono::system_clock;
constexpr std::array kKeys{"aws_access_key_id", "aws_secret_access_key", "aws_session_token"};
constexpr std::array kUnsupported{"role_arn", "sso_session", "sso_start_url", "web_identity_token_file"};
constexpr std::chrono::minutes kBeforeEnd{5};  // credentials are renewed so long before they expire
constexpr std::chrono::milliseconds kServicePatience{3'000};
constexpr std::chrono::seconds kProcessPatience{30};
constexpr int kTimedOut = 124;                           // exit status of timeout(1)
constexpr std::chrono::milliseconds kBetweenLooks{100};  // between two looks whether to go on waiting
constexpr size_t kLongestOutput = size_t{64} << 10;      // of a credential_process

std::string file_of(const char* name, const char* in_home) {
  const std::string given = aws_variable(name);
  return given.empty() ? aws_variable("HOME") + in_home : given;
}

// Adds the settings of a section of an INI file. False: it has no such section.
Result<bool> add_section(const std::string& path, const std::string& section, AwsProfile& settings) {
  auto text = read_file(path);
  if (!text && (text.error().errno_value() == ENOENT || text.error().errno_value() == ENOTDIR)) return false;
  if (!text) return with_name(path, text.error());
  std::istringstream lines(text.value());
  bool inside = false, found = false;
  for (std::string line; std::getline(lines, line);) {
    const bool indented = !line.empty() && (line.front() == ' ' || line.front() == '\t');  // of a setting of settings
    line = trimmed(line);
    if (line.empty() || line.front() == '#' || line.front() == ';' || indented) continue;
    if (line.front() == '[') {
      const std::string name = trimmed(line.substr(1, line.find(']') - 1));
      inside = name == section || (section == "default" && name == "profile default");
      found = found || inside;
    } else if (const size_t equals = line.find('='); inside && equals != std::string::npos) {
      settings[trimmed(line.substr(0, equals))] = trimmed(line.substr(equals + 1));
    }
  }
  return found;
}

std::string profile_named(const std::string& name) {
  if (!name.empty()) return name;
  const std::string given = aws_variable("AWS_PROFILE");
  return given.empty() ? "default" : given;
}

// Runs it in a shell, as the AWS tools do. At most so much of its output is read.
Result<std::string> output_of(const std::string& command, const RequestLimits& limits) {
  using std::chrono::seconds;
  const auto left = std::chrono::duration_cast<seconds>(limits.deadline - std::chrono::steady_clock::now());
  const std::string time = std::to_string(std::clamp(left, seconds(1), kProcessPatience).count());
  const std::string shell = "eval \"$1\" | head -c " + std::to_string(kLongestOutput + 1);
  TRY_ASSIGN(ProcessOutput done,
             run_process({"timeout", "--kill-after=1", time, "sh", "-c", shell, "sh", command}, limits.stop));
  if (limits.is_stopped()) return Error(ECANCELED);
  if (done.status == kTimedOut) return Error(EAGAIN, "credential_process has not ended within " + time + " s");
  if (done.out.size() > kLongestOutput) return Error(EACCES, "credential_process: its output is too long");
  return std::move(done.out);
}

bool is_plain(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char letter) { return letter > ' ' && letter < 0x7f; });
}

Error unsupported(const std::string& what) {
  return Error(EACCES, what +
                           " is not read here: let a profile have the line `credential_process = aws configure "
                           "export-credentials --profile NAME --format process`");
}

// By http a token goes to this machine or to the services of AWS only, as the AWS tools have it.
bool may_have_token(const std::string& url) {
  if (url.starts_with("https://")) return true;
  constexpr std::array<std::string_view, 6> kHosts{"127.0.0.1",     "localhost",      "[::1]",
                                                   "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
  constexpr std::string_view kHttp = "http://";
  if (!url.starts_with(kHttp)) return false;
  const std::string_view rest = std::string_view(url).substr(kHttp.size());
  return std::ranges::any_of(kHosts, [&](std::string_view host) {
    return rest.starts_with(host) &&
           (rest.size() == host.size() || rest[host.size()] == ':' || rest[host.size()] == '/');
  });
}

std::optional<S3Credentials> from_environment() {
  const std::string key = aws_variable("AWS_ACCESS_KEY_ID"), secret = aws_variable("AWS_SECRET_ACCESS_KEY");
  if (key.empty() || secret.empty()) return std::nullopt;
  return S3Credentials{key, secret, aws_variable("AWS_SESSION_TOKEN")};
}

}  // namespace

std::string aws_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<AwsProfile> read_aws_profile(const std::string& name) {
  const std::string profile = profile_named(name);
  AwsProfile settings, in_credentials;
  TRY_ASSIGN(const bool has_settings, add_section(file_of("AWS_CONFIG_FILE", "/.aws/config"),
                                                  profile == "default" ? profile : "profile " + profile, settings));
  TRY_ASSIGN(const bool has_credentials,
             add_section(file_of("AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials"), profile, in_credentials));
  if (!has_settings && !has_credentials && profile != "default") {
    return Error(EACCES, "there is no profile " + printable(profile) + " in ~/.aws/config or ~/.aws/credentials");
  }
  if (in_credentials.contains(kKeys[0])) {
    for (const char* key : kKeys) settings.erase(key);
  }
  for (auto& [setting, value] : in_credentials) settings[setting] = value;
  return settings;
}

Result<S3Credentials> credentials_of_json(const std::string& text, const std::string& where) {
  auto parsed = parse_json(text, {});
  const auto text_at = [&](const char* name) -> std::string {
    if (!parsed || !parsed.value().is_object() || !parsed.value().contains(name)) return {};
    const auto& value = parsed.value()[name];
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  S3Credentials found{text_at("AccessKeyId"), text_at("SecretAccessKey"), text_at("SessionToken")};
  if (found.session_token.empty()) found.session_token = text_at("Token");
  if (found.access_key.empty() || found.secret_key.empty()) {
    return Error(EACCES, where + ": no AccessKeyId and SecretAccessKey in what it says");
  }
  if (const std::string end = text_at("Expiration"); !end.empty()) {
    std::tm parts{};
    if (::strptime(end.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) == nullptr) {
      return Error(EACCES, where + ": Expiration is no time: " + printable(end));
    }
    found.expires = SystemClock::from_time_t(::timegm(&parts));
  }
  return found;
}

Result<S3Credentials> S3CredentialSource::get(const RequestLimits& limits) {
  MutexLock lock(mutex_);
  if (known_ && known_->expires - kBeforeEnd > SystemClock::now()) return *known_;
  if (asking_) {
    while (asking_) {
      if (limits.is_stopped()) return Error(ECANCELED);
      const auto now = std::chrono::steady_clock::now();
      if (now >= limits.deadline) return Error(ETIMEDOUT, "credentials for S3 are still looked for");
      changed_.wait_until(mutex_, std::min(now + kBetweenLooks, limits.deadline));
    }
    if (known_) return *known_;
    return failure_;
  }
  asking_ = true;
  lock.unlock();
  auto found = find(limits);
  if (found && !(is_plain(found.value().access_key) && is_plain(found.value().secret_key) &&
                 is_plain(found.value().session_token))) {
    found = Error(EACCES, "the credentials for S3 that were found have characters that no credentials have");
  }
  lock.lock();
  asking_ = false;
  changed_.notify_all();
  if (found) known_ = found.value();
  // What is known still serves until it expires: a service may be out of reach for a moment.
  if (!found && known_ && known_->expires > SystemClock::now()) {
    log::warn("credentials for S3 are not renewed; those that are known serve until they expire: {}",
              found.error().message());
    return *known_;
  }
  if (!found) {
    known_.reset();
    failure_ = found.error();
  }
  return found;
}

void S3CredentialSource::forget() {
  const MutexLock lock(mutex_);
  known_.reset();
}

Result<S3Credentials> S3CredentialSource::find(const RequestLimits& limits) const {
  expect_secret();
  if (profile_.empty()) {
    if (auto found = from_environment()) return *found;
    for (const char* name : {"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"}) {
      if (!aws_variable(name).empty()) return unsupported(name);
    }
  }
  TRY_ASSIGN(const auto of_profile, from_profile(limits));
  if (of_profile) return *of_profile;
  if (!profile_.empty()) {
    return Error(EACCES, "the profile " + printable(profile_) + " has neither keys nor a credential_process");
  }
  TRY_ASSIGN(const auto of_container, from_container(limits));
  if (of_container) return *of_container;
  TRY_ASSIGN(const auto of_instance, from_instance(limits));
  if (of_instance) return *of_instance;
  return Error(EACCES,
               "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them into "
               "~/.aws/credentials");
}

Result<std::optional<S3Credentials>> S3CredentialSource::from_profile(const RequestLimits& limits) const {
  TRY_ASSIGN(AwsProfile settings, read_aws_profile(profile_));
  for (const char* name : kUnsupported) {
    if (settings.contains(name)) return unsupported(std::string(name) + " of the profile");
  }
  const std::string key = settings[kKeys[0]], secret = settings[kKeys[1]];
  if (!key.empty() && !secret.empty()) return std::optional(S3Credentials{key, secret, settings[kKeys[2]]});
  const std::string command = settings["credential_process"];
  if (command.empty()) return std::optional<S3Credentials>();
  TRY_ASSIGN(const std::string output, output_of(command, limits));
  TRY_ASSIGN(S3Credentials found, credentials_of_json(output, "credential_process"));
  return std::optional(std::move(found));
}

Result<std::optional<S3Credentials>> S3CredentialSource::from_container(const RequestLimits& limits) const {
  const std::string relative = aws_variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string url =
      relative.empty() ? aws_variable("AWS_CONTAINER_CREDENTIALS_FULL_URI") : "http://169.254.170.2" + relative;
  if (url.empty()) return std::optional<S3Credentials>();
  if (!may_have_token(url)) {
    return Error(EACCES, "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor an address of this machine");
  }
  std::string token = aws_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file = aws_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !file.empty()) {
    auto text = read_file(file);
    if (!text) return Error(EACCES, text.error().message());
    token = trimmed(text.value());
  }
  if (!is_plain(token)) return Error(EACCES, "the token for " + url + " has characters that no token has");
  std::vector<std::string> headers;
  if (!token.empty()) headers.push_back("Authorization: " + token);
  TRY_ASSIGN(const auto said, ask("GET", url, std::move(headers), limits));
  if (!said) return Error(EAGAIN, url + " is out of reach: it should have credentials");
  TRY_ASSIGN(S3Credentials found, credentials_of_json(*said, url));
  return std::optional(std::move(found));
}

Result<std::optional<S3Credentials>> S3CredentialSource::from_instance(const RequestLimits& limits) const {
  if (aws_variable("AWS_EC2_METADATA_DISABLED") == "true") return std::optional<S3Credentials>();
  std::string service = aws_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (service.empty()) service = "http://169.254.169.254";
  TRY_ASSIGN(const auto token,
             ask("PUT", service + "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds: 21600"}, limits));
  if (!token) return std::optional<S3Credentials>();  // this machine is none of EC2's
  const std::string header = "X-aws-ec2-metadata-token: " + trimmed(*token);
  const std::string roles = service + "/latest/meta-data/iam/security-credentials/";
  TRY_ASSIGN(const auto role, ask("GET", roles, {header}, limits));
  if (!role) return std::optional<S3Credentials>();  // it has no role
  TRY_ASSIGN(const auto said, ask("GET", roles + trimmed(role->substr(0, role->find('\n'))), {header}, limits));
  if (!said) return Error(EAGAIN, roles + " is out of reach");
  TRY_ASSIGN(S3Credentials found, credentials_of_json(*said, roles));
  return std::optional(std::move(found));
}

Result<std::optional<std::string>> S3CredentialSource::ask(const std::string& method, const std::string& url,
                                                           std::vector<std::string> headers,
                                                           const RequestLimits& limits) const {
  HttpRequest request{method, url, std::move(headers)};
  request.no_proxy = true;
  RequestLimits soon = RequestLimits::within(kServicePatience, limits.stop);
  soon.deadline = std::min(soon.deadline, limits.deadline);
  soon.stall = kServicePatience;
  auto answer = http_.send(request, soon);
  if (!answer && answer.error().errno_value() == ECANCELED) return answer.error();
  if (!answer) return std::optional<std::string>();
  const long status = answer.value().status;
  if (status == 404) return std::optional<std::string>();
  if (status / 100 == 2) return std::optional(std::move(answer.value().text));
  return Error(status == 429 || status >= 500 ? EAGAIN : EACCES,
               url + " answers " + std::to_string(status) + " where it should have credentials");
}

}  // namespace ckptfs::io
