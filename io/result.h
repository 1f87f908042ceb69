// Errors are values: Result<T> is a T or an Error. An Error is a std::error_code (an errno, in the system category)
// and, where a person will read it, a sentence that names the thing and the way out. It becomes an errno in one place,
// the FUSE boundary (fs/ops/request.h).
#pragma once

#include <boost/outcome/basic_result.hpp>
#include <cerrno>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace ckptfs {

class [[nodiscard]] Error {
 public:
  Error() = default;
  explicit Error(int errno_value, std::string what = {})
      : code_(errno_value, std::system_category()), what_(std::move(what)) {}

  int errno_value() const { return code_.value(); }
  const std::error_code& code() const { return code_; }
  // What went wrong, in words, or else the errno's own text.
  std::string message() const { return what_.empty() ? code_.message() : what_; }

 private:
  std::error_code code_;
  std::string what_;
};

// Returns the calling thread's errno as an Error. `what` is put before the errno's text.
inline Error last_error(const std::string& what = {}) {
  const int e = errno;
  return Error(e, what.empty() ? std::string() : what + ": " + std::system_category().message(e));
}

template <class T = void>
using Result = boost::outcome_v2::basic_result<T, Error, boost::outcome_v2::policy::terminate>;

inline auto success() { return boost::outcome_v2::success(); }

// The same error, with the name of what it is about before its words.
inline Error with_name(const std::string& name, const Error& error) {
  return Error(error.errno_value(), name + ": " + error.message());
}
template <class T>
Result<T> with_name(const std::string& name, Result<T> result) {
  if (!result) return with_name(name, result.error());
  return result;
}

// There is no such thing, or no more.
inline bool is_gone(const Error& error) { return error.errno_value() == ENOENT; }
// None: it is gone. Any other error stays one.
template <class T>
Result<std::optional<T>> none_if_gone(Result<T> found) {
  if (found) return std::optional(std::move(found).value());
  if (is_gone(found.error())) return std::optional<T>();
  return std::move(found).error();
}

}  // namespace ckptfs

// TRY(expr) leaves the function if expr is an error. TRY_ASSIGN(auto x, expr) does the same, and else assigns the
// value. Boost.Outcome's own TRY is not used: its syntax changed between the releases that Debian ships.
#define CKPTFS_CONCAT2(a, b) a##b
#define CKPTFS_CONCAT(a, b) CKPTFS_CONCAT2(a, b)
#define TRY(expr)                                          \
  do {                                                     \
    auto&& try_result = (expr);                            \
    if (!try_result) return std::move(try_result).error(); \
  } while (false)
// Assigns to what is there already, as one statement.
#define TRY_SET(place, expr)                               \
  do {                                                     \
    auto&& try_result = (expr);                            \
    if (!try_result) return std::move(try_result).error(); \
    place = std::move(try_result).value();                 \
  } while (false)
#define TRY_ASSIGN(decl, expr) TRY_ASSIGN_IMPL(CKPTFS_CONCAT(try_result_, __LINE__), decl, expr)
#define TRY_ASSIGN_IMPL(tmp, decl, expr)   \
  auto tmp = (expr);                       \
  if (!tmp) return std::move(tmp).error(); \
  decl = std::move(tmp).value()
