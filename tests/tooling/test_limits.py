"""docs/limits.md says what the sources say, and the tests that it names are there."""

import re

from checking import equal, true
from mounting import REPOSITORY

PAGE = REPOSITORY / "docs/limits.md"

# What the page says, the file that it names, and the line there.
LIMITS = (
    ("255 bytes", "meta/names.h", "kMaximumName = 255;"),
    ("131,072", "meta/formats/safetensors.h", "kMostTensors = size_t{1} << 17;"),
    ("32 MiB", "meta/formats/safetensors.h", "kMostSafetensorsHeader = uint64_t{32} << 20;"),
    ("32 MiB, and 64 MiB of values", "meta/formats/pickle.h", "kMostBytes = size_t{32} << 20;"),
    ("32 MiB, and 64 MiB of values", "meta/formats/pickle.h", "kMostMemory = size_t{64} << 20;"),
    ("64, as torch", "meta/formats/tensor_map.h", "kMostDimensions = 64;"),
    ("65,536", "meta/formats/weight_index.cc", "kMostShards = size_t{1} << 16;"),
    ("65,536", "meta/formats/deepspeed_files.h", "kMostRanks = 1 << 16;"),
    ("262,144", "meta/formats/manifest.cc", "kMostFilesOfRank = size_t{1} << 18;"),
    ("2 GiB", "fs/views/files_of_step.h", "kMostRead = uint64_t{2} << 30;"),
    ("1,048,576", "fs/views/view.cc", "kMostNodes = size_t{1} << 20;"),
    ("1,048,576", "fs/cli/daemon_process.cc", "kWantedDescriptors = 1 << 20;"),
    ("96 MiB", "fs/base/user_budget.h", "kMost = uint64_t{96} << 20;"),
    ("64", "fs/control/server.cc", "kConnectionsPerUser = 64;"),
    ("64", "fs/control/http_server.cc", "kMostConnections = 64;"),
    ("65,536; 4,096", "fs/remote/remote_settings.cc", "kMostSlots = 65536;"),
    ("65,536; 4,096", "fs/remote_mount/places.h", "kMostSlots = 1U << 12;"),
    ("4,194,303", "fs/remote_mount/places.h", "kMostStepNumber = (1U << 22) - 1;"),
    ("4 GiB, 1,048,576 entries", "meta/remote/part_format.h", "kMostPartBytes = uint64_t{4} << 30;"),
    ("4 GiB, 1,048,576 entries", "meta/remote/part_format.h", "kMostEntries = uint64_t{1} << 20;"),
)


def rows():
    return [line for line in PAGE.read_text().splitlines() if line.startswith("|")]


def test_limits_are_those_of_the_sources():
    for said, file, line in LIMITS:
        true(line in (REPOSITORY / file).read_text(), f"{file} has {line!r}")
        true(any(f"| {said}" in row and f"`{file}`" in row for row in rows()), f"a row of the page says {said!r} of {file}")
    named = {file for row in rows() if "code: " in row for file in re.findall(r"`([\w/]+\.(?:h|cc))`", row)}
    equal({file for file in named if (REPOSITORY / file).exists()}, {file for _, file, _ in LIMITS}, "files that the page names")


def test_tests_that_the_page_names_are_there():
    named = set(re.findall(r"`(\w+/[\w/]+_test\.cc|\w+/test_\w+\.py)`", PAGE.read_text()))
    true(len(named) > 5, f"tests are named: {named}")
    equal([name for name in named if not (REPOSITORY / "tests" / name).exists()], [], "tests that are not there")
