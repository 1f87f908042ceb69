"""clang refuses code that touches what a mutex of io/mutex.h guards without holding that mutex."""

import shutil
import subprocess

from checking import equal, true
from mounting import REPOSITORY, Skip

COMPILE = ["clang++", "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror", "-I", str(REPOSITORY), "-x", "c++", "-"]

# A class with a field, a nested struct, a function that needs the lock, and one more function: @BODY@.
CODE = """
#include "io/mutex.h"
using namespace ckptfs::io;

class Counter {
 public:
  void check() { @BODY@ }

 private:
  struct Entry {
    int value GUARDED_BY(&Counter::mutex_) = 0;
  };
  void count() REQUIRES(mutex_) { ++count_; }
  void report() EXCLUDES(mutex_) {}

  Mutex mutex_;
  CondVar changed_;
  int count_ GUARDED_BY(mutex_) = 0;
  Entry entry_;
};
"""

LOCK = "MutexLock lock(mutex_); "
RIGHT = (LOCK + "++count_;", LOCK + "count();", LOCK + "++entry_.value;",
         LOCK + "lock.unlock(); report(); lock.lock(); count();",
         LOCK + "changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return count_ > 0; });")
# What is wrong, and a part of what clang says about it.
WRONG = (("++count_;", "'count_' requires holding mutex 'mutex_'"),
         ("count();", "'count' requires holding mutex 'mutex_'"),
         ("++entry_.value;", "'value' requires holding mutex"),
         (LOCK + "lock.unlock(); ++count_;", "'count_' requires holding mutex 'mutex_'"),
         (LOCK + "report();", "'report' while mutex 'mutex_' is held"),
         (LOCK + "changed_.wait(mutex_, [this] { return count_ > 0; });", "'count_' requires holding mutex 'mutex_'"),
         ("changed_.wait(mutex_);", "'wait' requires holding mutex 'mutex_'"),
         ("mutex_.lock(); ++count_;", "'mutex_' is still held"))


def complaints(bodies):
    """Returns what clang says about a class for each of the bodies, in one run."""
    if shutil.which("clang++") is None:
        raise Skip("there is no clang++")
    code = CODE.split("class Counter", 1)
    classes = [("class Counter" + code[1].replace("@BODY@", body)).replace("Counter", f"Counter{number}")
               for number, body in enumerate(bodies)]
    done = subprocess.run(COMPILE, input=code[0] + "".join(classes), text=True, capture_output=True)
    return [line for line in done.stderr.splitlines() if " error: " in line]


def test_what_is_right_is_left_alone():
    equal(complaints(RIGHT), [])


def test_a_lock_that_is_missing_is_found():
    found = complaints([body for body, _ in WRONG])
    equal(len(found), len(WRONG))
    for line, (body, part) in zip(found, WRONG):
        true(part in line, f"{body}: {line}")
