#include "meta/tree/step_events.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

namespace ckptfs::meta {
namespace {

constexpr std::array kNames{"began", "completed", "set_aside", "renamed", "thinned", "pushed", "removed"};

}  // namespace

const char* name_of(StepEvent::What what) { return kNames[static_cast<size_t>(what)]; }

// "completed TIME STEP SERIES OWNER", then tag and detail. Each ends with a zero byte, which no name has.
std::string encode_event(const StepEvent& event) {
  std::ostringstream text;
  text << name_of(event.what) << ' ' << event.time.time_since_epoch().count() << ' ' << event.step << ' '
       << event.series << ' ' << event.owner << '\0' << event.tag << '\0' << event.detail << '\0';
  return text.str();
}

Result<StepEvent> decode_event(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream rest(text);
  for (std::string part; std::getline(rest, part, '\0');) parts.push_back(part);
  std::istringstream head(parts.empty() ? "" : parts.front());
  std::string name;
  int64_t time = 0;
  StepEvent event;
  head >> name >> time >> event.step >> event.series >> event.owner;
  const auto known = std::ranges::find(kNames, name);
  if (head.fail() || known == kNames.end() || parts.size() != 3)
    return Error(EIO, "the index holds a damaged record of what happened to a step");
  event.what = static_cast<StepEvent::What>(known - kNames.begin());
  event.time = WallTime(std::chrono::nanoseconds(time));
  event.tag = parts[1];
  event.detail = parts[2];
  return event;
}

}  // namespace ckptfs::meta
