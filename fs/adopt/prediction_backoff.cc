#include "fs/adopt/prediction_backoff.h"

#include <algorithm>
#include <cctype>

namespace ckptfs::fs {
namespace {

// model-00001-of-00030.safetensors: model-#-of-#.safetensors
std::string pattern_of(const std::string& name) {
  std::string pattern;
  for (const char c : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) pattern += c;
    if (digit && (pattern.empty() || pattern.back() != '#')) pattern += '#';
  }
  return pattern;
}

}  // namespace

bool PredictionBackoff::Record::ask() {
  if (left == 0) return true;
  --left;
  return false;
}

bool PredictionBackoff::ask(const std::string& name) {
  const io::MutexLock lock(mutex_);
  if (const auto known = names_.find(name); known != names_.end()) return known->second.ask();
  const auto alike = patterns_.find(pattern_of(name));
  return alike == patterns_.end() ? unknown_.ask() : alike->second.ask();
}

void PredictionBackoff::learn(const std::string& name, bool right) {
  const io::MutexLock lock(mutex_);
  learn(names_, name, right);
  if (!terms_.alike) return;
  const std::string pattern = pattern_of(name);
  if (!patterns_.contains(pattern)) learn(unknown_, kFirstPauseOfUnknown, right);
  learn(patterns_, pattern, right);
}

void PredictionBackoff::learn(Records& records, const std::string& key, bool right) const {
  if (records.size() >= kMostRecords) records.clear();
  learn(records[key], terms_.first_pause, right);
}

void PredictionBackoff::learn(Record& record, unsigned first_pause, bool right) const {
  record.pause = right ? 0 : std::clamp(record.pause * 2, first_pause, terms_.longest_pause);
  record.left = record.pause;
}

}  // namespace ckptfs::fs
