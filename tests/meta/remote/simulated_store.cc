#include "tests/meta/remote/simulated_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "meta/remote/layout.h"

namespace ckptfs::meta::remote::testing {
namespace {

constexpr size_t kPage = 8;

}  // namespace

// Some of what fails is asked again, as retrying_store.h does, and some is told.
Result<> SimulatedStore::begin(const char* what, const std::string& key) {
  for (;;) {
    world_.pass_turn(actor_);
    if (world_.is_over()) return Error(ECANCELED);
    world_.note(&actor_, [&] { return fmt::format("{} {}{}", what, key, actor_.killed ? ", and is dead" : ""); });
    if (actor_.killed || !world_.happens(Hazard::refuse, 60)) return success();
    actor_.met_hazard = true;
    if (world_.roll(3) == 0) return Error(EAGAIN, "answers 500");
  }
}

Result<SimulatedStore::Reply> SimulatedStore::reply(const std::string& key) {
  const bool dies_often = world_.is_patient() && parse_folder(key).has_value();
  if (world_.happens(Hazard::kill, dies_often ? 10 : 100)) actor_.killed = true;
  if (actor_.killed) return Error(ECANCELED);
  if (!world_.happens(Hazard::lose_reply, 30)) return Reply::comes;
  actor_.met_hazard = true;
  if (world_.roll(2) == 0) return Error(ECONNRESET, "the connection broke");
  return Reply::is_lost;
}

Result<> SimulatedStore::put(const std::string& key, const io::ObjectContent& content, io::PutMode mode,
                             const io::RequestLimits& /*limits*/) {
  if (world_.is_patient() && world_.happens(Hazard::long_stop, 8)) {
    world_.sleep(actor_, world_.roll(kLongestLongStop));
  }
  for (;;) {
    TRY(begin("put", key));
    std::string text(content.size, '\0');
    TRY(content.read(0, std::as_writable_bytes(std::span(text))));
    const auto done = make(key, std::move(text), mode);
    if (actor_.killed) return Error(ECANCELED);
    TRY_ASSIGN(const Reply comes, reply(key));
    if (comes == Reply::comes) return done;
  }
}

Result<> SimulatedStore::make(const std::string& key, std::string text, io::PutMode mode) {
  if (!actor_.killed) return world_.put(&actor_, key, std::move(text), mode);
  const bool late = !actor_.is_cut_off && world_.happens(Hazard::late_request, 2);
  if (late) world_.arrive_later(key, std::move(text), mode);
  return Error(ECANCELED);
}

Result<> SimulatedStore::copy(const std::string& from, const std::string& to, uint64_t size,
                              const io::RequestLimits& /*limits*/) {
  for (;;) {
    TRY(begin("copy", from + " to " + to));
    const StoredObject* const found = world_.find(from);
    if (found == nullptr || found->text.size() != size) return Error(ENOENT, from + ": there is none");
    const auto done = make(to, found->text, io::PutMode::replace);
    if (actor_.killed) return Error(ECANCELED);
    TRY_ASSIGN(const Reply comes, reply(to));
    if (comes == Reply::comes) return done;
  }
}

Result<io::Upload> SimulatedStore::begin_upload(const std::string& key, const io::RequestLimits& /*limits*/) {
  for (;;) {
    TRY(begin("begin", key));
    if (actor_.killed) return Error(ECANCELED);
    const std::string id = world_.roll_id();
    world_.uploads()[id] = {"", world_.now()};
    TRY_ASSIGN(const Reply comes, reply(key));
    if (comes == Reply::comes) return io::Upload{key, id};
  }
}

Result<std::string> SimulatedStore::put_piece(const io::Upload& upload, uint32_t number, uint64_t offset,
                                              const io::ObjectContent& content, const io::RequestLimits& /*limits*/) {
  for (;;) {
    TRY(begin("piece", upload.key));
    std::string text(content.size, '\0');
    TRY(content.read(0, std::as_writable_bytes(std::span(text))));
    if (actor_.killed) return Error(ECANCELED);
    const auto found = world_.uploads().find(upload.id);
    if (found == world_.uploads().end()) return Error(ENOENT, upload.key + ": there is no such upload");
    std::string& whole = found->second.text;
    whole.resize(std::max<size_t>(whole.size(), offset + text.size()));
    whole.replace(offset, text.size(), text);
    found->second.changed = world_.now();
    TRY_ASSIGN(const Reply comes, reply(upload.key));
    if (comes == Reply::comes) return "tag " + std::to_string(number);
  }
}

Result<> SimulatedStore::complete_upload(const io::Upload& upload, uint64_t size,
                                         const std::vector<std::string>& pieces, const io::RequestLimits& /*limits*/) {
  for (;;) {
    TRY(begin("complete", upload.key));
    const auto found = world_.uploads().find(upload.id);
    const StoredObject* const there = world_.find(upload.key);
    if (found == world_.uploads().end()) {
      if (there == nullptr || there->text.size() != size)
        return Error(ENOENT, upload.key + ": there is no such upload");
      return actor_.killed ? Result<>(Error(ECANCELED)) : success();
    }
    for (size_t at = 0; at < pieces.size(); ++at) {
      if (pieces[at] != "tag " + std::to_string(at + 1)) return Error(EPROTO, upload.key + ": InvalidPart");
    }
    if (found->second.text.size() != size) return Error(EPROTO, upload.key + ": it lacks pieces");
    const auto done = make(upload.key, found->second.text, io::PutMode::replace);
    if (actor_.killed) return Error(ECANCELED);
    world_.uploads().erase(found);
    TRY_ASSIGN(const Reply comes, reply(upload.key));
    if (comes == Reply::comes) return done;
  }
}

Result<uint64_t> SimulatedStore::end_uploads(std::chrono::seconds older_than, const io::RequestLimits& /*limits*/) {
  TRY(begin("end uploads", ""));
  if (actor_.killed) return Error(ECANCELED);
  const auto age = static_cast<uint64_t>(older_than.count());
  return std::erase_if(world_.uploads(), [&](const auto& one) { return one.second.changed + age <= world_.now(); });
}

Result<size_t> SimulatedStore::get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                                   const io::RequestLimits& /*limits*/) {
  TRY(begin("get", key));
  if (actor_.killed) return Error(ECANCELED);
  const StoredObject* const found = world_.find(key);
  if (found == nullptr) return Error(ENOENT, key + ": there is none");
  const size_t first = std::min<uint64_t>(offset, found->text.size());
  const size_t length = std::min(buffer.size(), found->text.size() - first);
  std::memcpy(buffer.data(), found->text.data() + first, length);
  return length;
}

// A late list does not have what was made of late.
Result<io::ObjectPage> SimulatedStore::list(const std::string& prefix, const std::string& token,
                                            const io::RequestLimits& /*limits*/) {
  TRY(begin("list", prefix + (token.empty() ? "" : " after " + token)));
  if (actor_.killed) return Error(ECANCELED);
  const uint64_t lag = world_.happens(Hazard::late_list, 20) ? world_.roll(kLatest) : 0;
  io::ObjectPage page;
  const auto& objects = world_.objects();
  for (auto at = token.empty() ? objects.lower_bound(prefix) : objects.upper_bound(token);
       at != objects.end() && at->first.starts_with(prefix); ++at) {
    if (at->second.made + lag > world_.now()) continue;
    if (page.objects.size() == kPage) {
      page.next = page.objects.back().key;
      break;
    }
    const std::chrono::system_clock::time_point made{std::chrono::seconds(at->second.made)};
    page.objects.push_back({at->first, at->second.text.size(), made});
  }
  if (!page.next.empty() && world_.happens(Hazard::short_list, 60)) {
    world_.note(&actor_, [&] { return "and the list ends after " + page.next; });
    page.next.clear();
    actor_.met_hazard = actor_.met_short_list = true;
  }
  return page;
}

Result<> SimulatedStore::remove(const std::string& key, const io::RequestLimits& /*limits*/) {
  for (;;) {
    TRY(begin("remove", key));
    if (actor_.killed) {
      if (!actor_.is_cut_off && world_.happens(Hazard::late_request, 2)) world_.arrive_later(key, std::nullopt);
      return Error(ECANCELED);
    }
    world_.remove(key);
    TRY_ASSIGN(const Reply comes, reply(key));
    if (comes == Reply::comes) return success();
  }
}

}  // namespace ckptfs::meta::remote::testing
