#include "meta/formats/trainer_state.h"

#include "io/json.h"

namespace ckptfs::meta::formats {
namespace {

constexpr io::JsonBounds kTrainerStateBounds{
    .bytes = uint64_t{64} << 20, .values = io::kAnyNumber, .text = uint64_t{1} << 20, .depth = 64, .python = true};

// Reports the numbers with their depth. The state itself has depth 1, and an entry of its history has depth 3.
class NumbersOfState : public io::JsonVisitor {
 public:
  bool number_integer(number_integer_t number) final { return told(static_cast<double>(number)); }
  bool number_unsigned(number_unsigned_t number) final { return told(static_cast<double>(number)); }
  bool number_float(number_float_t number, const string_t&) final { return told(number); }
  bool start_object(size_t) final { return begin(true); }
  bool start_array(size_t) final { return begin(false); }
  bool end_object() final { return end(); }
  bool end_array() final { return end(); }
  bool key(string_t& key) final {
    if (depth_ == 1) in_history_ = key == "log_history";
    name_.clear();
    if (depth_ <= kEntry) name_ = key;
    return true;
  }

 protected:
  static constexpr unsigned kState = 1, kEntry = 3;

  virtual void number(unsigned depth, const std::string& name, double value) = 0;
  // They enclose the numbers of an entry of the history.
  virtual void entry_begins() {}
  virtual void entry_ends() {}

 private:
  bool told(double value) {
    if (depth_ == kState || (depth_ == kEntry && in_entry_)) number(depth_, name_, value);
    return true;
  }
  bool begin(bool object) {
    ++depth_;
    if (depth_ == kState && !object) return fails(Error(EBADMSG, "it is no object"));
    if (depth_ != kEntry) return true;
    in_entry_ = in_history_ && object;
    if (in_entry_) entry_begins();
    return true;
  }
  bool end() {
    if (depth_-- == kEntry && in_entry_) entry_ends();
    return true;
  }

  unsigned depth_ = 0;
  bool in_history_ = false;
  bool in_entry_ = false;
  std::string name_;
};

class StepOfState : public NumbersOfState {
 public:
  std::optional<double> step;

 private:
  void number(unsigned depth, const std::string& name, double value) override {
    if (depth == kState && name == "global_step") step = value;
  }
};

class MetricOfState : public NumbersOfState {
 public:
  MetricOfState(std::optional<double> step, const std::string& name) : step_(step), name_(name) {}
  std::optional<double> metric;

 private:
  void number(unsigned depth, const std::string& name, double value) override {
    if (depth != kEntry) return;
    if (name == "step") of_step_ = value;
    if (name == name_) of_name_ = value;
  }
  void entry_begins() override {
    of_step_.reset();
    of_name_.reset();
  }
  void entry_ends() override {
    if (of_name_ && of_step_ == step_) metric = of_name_;
  }

  const std::optional<double> step_;
  const std::string& name_;
  std::optional<double> of_step_;
  std::optional<double> of_name_;
};

class KeysOfState : public io::JsonVisitor {
 public:
  bool key(string_t& key) override {
    is_best_ = depth_ == 1 && key == "best_model_checkpoint";
    has_step = has_step || (depth_ == 1 && key == "global_step");
    return true;
  }
  bool string(string_t& text) override {
    if (is_best_) best_model = text;
    is_best_ = false;
    return true;
  }
  std::string best_model;
  bool has_step = false;

 private:
  bool begin(bool) override {
    is_best_ = false;
    ++depth_;
    return true;
  }
  bool end() override {
    --depth_;
    return true;
  }

  unsigned depth_ = 0;
  bool is_best_ = false;
};

}  // namespace

Result<> check_trainer_state(const io::LimitedFile& file, uint64_t size) {
  KeysOfState state;
  TRY(io::read_json(file, 0, size, kTrainerStateBounds, state));
  if (!state.has_step) return Error(ENODATA, "it has no global_step, so no Trainer wrote it");
  return success();
}

// It needs two passes, because "global_step" may come after the history.
Result<std::optional<double>> metric_in_trainer_state(const io::LimitedFile& file, uint64_t size,
                                                      const std::string& name) {
  StepOfState of_state;
  TRY(io::read_json(file, 0, size, kTrainerStateBounds, of_state));
  MetricOfState of_history(of_state.step, name);
  TRY(io::read_json(file, 0, size, kTrainerStateBounds, of_history));
  return of_history.metric;
}

Result<std::string> best_model_in_trainer_state(const io::LimitedFile& file, uint64_t size) {
  KeysOfState state;
  TRY(io::read_json(file, 0, size, kTrainerStateBounds, state));
  std::string& path = state.best_model;
  path.erase(path.find_last_not_of('/') + 1);
  return path.substr(path.rfind('/') + 1);
}

}  // namespace ckptfs::meta::formats
