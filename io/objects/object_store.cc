#include "io/objects/object_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "io/printable.h"

namespace ckptfs::io {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLasting{5};  // a failure that passes sooner is not told

constexpr std::string_view kOwnFolder = ".ckptfs";

bool is_name(std::string_view name, bool first) {
  if (name.empty() || name == "." || name == ".." || name.find('\0') != std::string_view::npos) return false;
  return !first || name.front() != '.' || name == kOwnFolder;
}

}  // namespace

ObjectContent content_of(std::span<const std::byte> bytes) {
  return {bytes.size(), [bytes](uint64_t offset, std::span<std::byte> buffer) -> Result<> {
            std::memcpy(buffer.data(), bytes.data() + offset, buffer.size());
            return success();
          }};
}

ObjectContent content_of(std::string_view text) { return content_of(std::as_bytes(std::span(text))); }

void RequestCounts::note_failure(const Error& error, Clock::time_point begun) {
  {
    const MutexLock lock(mutex_);
    if (!trouble_) trouble_ = Trouble{{}, std::max(begun, succeeded_)};
    trouble_->text = error.message();
    if (told_ || Clock::now() - trouble_->since < kLasting) return;
    told_ = true;
  }
  if (tell_) tell_(error.message());
}

void RequestCounts::note_success() {
  const MutexLock lock(mutex_);
  trouble_.reset();
  told_ = false;
  succeeded_ = Clock::now();
}

std::optional<RequestCounts::Trouble> RequestCounts::trouble() const {
  const MutexLock lock(mutex_);
  return trouble_;
}

bool can_pass(const Error& error) {
  constexpr std::array kPassing{ENOENT,       EAGAIN,    ETIMEDOUT, ECONNRESET, ECONNREFUSED, EHOSTUNREACH,
                                ENETUNREACH,  EHOSTDOWN, ENETDOWN,  ESTALE,     EIO,          EINTR,
                                ECONNABORTED, EREMOTEIO, ENOTCONN,  EPIPE,      ENOSPC,       EDQUOT};
  return std::ranges::find(kPassing, error.errno_value()) != kPassing.end();
}

Result<> for_each_object(ObjectStore& store, const std::string& prefix, const ObjectVisitor& visit,
                         const RequestLimits& limits) {
  const auto first = Clock::now();
  std::string token;
  do {
    TRY_ASSIGN(ObjectPage page, store.list(prefix, token, token.empty() ? limits : limits.renewed(first)));
    for (const ObjectInfo& object : page.objects) TRY(visit(object));
    if (!page.next.empty() && page.next == token) {
      return Error(EPROTO,
                   store.url() + "/" + prefix + ": the list does not go on: a page names itself as the next one");
    }
    token = std::move(page.next);
  } while (!token.empty());
  return success();
}

Result<std::string> get_text(ObjectStore& store, const std::string& key, size_t most, const RequestLimits& limits) {
  std::string text(std::min<size_t>(most + 1, size_t{64} << 10), '\0');
  size_t length = 0;
  for (;;) {
    const auto rest = std::as_writable_bytes(std::span(text)).subspan(length);
    TRY_ASSIGN(const size_t got, store.get(key, length, rest, limits));
    length += got;
    if (got < rest.size()) break;
    if (length > most)
      return Error(EFBIG, store.url() + "/" + key + " has more than " + std::to_string(most) + " bytes");
    text.resize(std::min(most + 1, 2 * text.size()));
  }
  text.resize(length);
  return text;
}

Result<bool> make_object(ObjectStore& store, const std::string& key, std::string_view text, const RequestLimits& limits,
                         PutMode mode) {
  const auto put = store.put(key, content_of(text), mode, limits);
  if (!put && put.error().errno_value() != EEXIST) return put.error();
  return put.has_value();
}

Result<bool> has_size(ObjectStore& store, const std::string& key, uint64_t size, const RequestLimits& limits) {
  std::array<std::byte, 2> end{};  // one byte more than there should be shows a longer object
  const uint64_t last = size == 0 ? 0 : size - 1;
  const auto got = store.get(key, last, end, limits);
  if (!got && got.error().errno_value() == ENOENT) return false;
  TRY(got);
  return got.value() == size - last;
}

Result<bool> is_listed(ObjectStore& store, const std::string& key, const RequestLimits& limits) {
  bool found = false;
  const auto look = [&](const ObjectInfo& object) -> Result<> {
    found = object.key == key;
    return found ? Result<>(Error(ECANCELED)) : success();  // ends the list
  };
  auto listed = for_each_object(store, key, look, limits);
  if (!listed && !found) return listed.error();
  return found;
}

Result<bool> holds(ObjectStore& store, const std::string& key, const ObjectContent& content,
                   const RequestLimits& limits) {
  constexpr size_t kCompared = size_t{1} << 20;
  std::vector<std::byte> there(kCompared + 1), ours(kCompared);
  for (uint64_t offset = 0;; offset += kCompared) {
    const size_t wanted = std::min<uint64_t>(kCompared, content.size - offset);
    const bool last = offset + wanted == content.size;
    // One byte more than there should be shows a longer object.
    TRY_ASSIGN(const size_t got, store.get(key, offset, std::span(there).first(wanted + (last ? 1 : 0)), limits));
    if (got != wanted) return false;
    TRY(content.read(offset, std::span(ours).first(wanted)));
    if (std::memcmp(there.data(), ours.data(), wanted) != 0) return false;
    if (last) return true;
  }
}

Result<> check_key(std::string_view key) {
  for (size_t begin = 0;;) {
    const size_t end = std::min(key.find('/', begin), key.size());
    if (!is_name(key.substr(begin, end - begin), begin == 0)) {
      return Error(EINVAL, printable(key) + ": no key of an object: it has a name that cannot be");
    }
    if (end == key.size()) return success();
    begin = end + 1;
  }
}

Result<> check_prefix(std::string_view prefix) {
  if (prefix.empty()) return success();
  if (!prefix.ends_with('/'))
    return Error(EINVAL, printable(prefix) + ": no prefix of objects: it has no '/' at its end");
  return check_key(prefix.substr(0, prefix.size() - 1));
}

Result<> check_beginning(std::string_view prefix) {
  return prefix.ends_with('/') ? check_prefix(prefix) : prefix.empty() ? Result<>(success()) : check_key(prefix);
}

}  // namespace ckptfs::io
