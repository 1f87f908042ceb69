"""tests/runner/layering.py finds a circle of includes and an include from above in a tree that has one of each."""

import pathlib
import tempfile

import layering
from checking import equal, true

FIRST, LAST = layering.ROOMS[0], layering.ROOMS[-1]


def tree(files):
    """The includes of a source tree: {path: the headers that it includes}."""
    with tempfile.TemporaryDirectory() as root:
        for path, headers in files.items():
            file = pathlib.Path(root) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("#include <vector>\n" + "".join(f'#include "{header}"\n' for header in headers))
        return layering.read_includes(root)


# One of each kind of include that is right.
GOOD = {
    "io/fd.h": [],
    "io/fd.cc": ["io/fd.h"],
    "meta/tree.h": ["io/fd.h"],
    "meta/tree.cc": ["meta/tree.h"],
    "gpu/load.cc": ["meta/tree.h"],
    f"fs/{FIRST}/low.h": [],
    f"fs/{LAST}/high.h": [f"fs/{FIRST}/low.h", "meta/tree.h"],
}


def test_what_is_right_is_left_alone():
    includes = tree(GOOD)
    equal(layering.circles(includes), [])
    equal(layering.upward(includes), [])


def test_a_circle_is_found_also_through_sources():
    includes = tree(GOOD | {"meta/index.h": ["meta/tree.h"], "meta/tree.cc": ["meta/tree.h", "meta/index.h"]})
    found = layering.circles(includes)
    equal(found[0], "these include each other: meta/index, meta/tree")
    true(any("meta/tree.cc:3" in line for line in found), str(found))


def test_a_layer_that_includes_from_above_is_found():
    for path, header in (("io/fd.cc", "meta/tree.h"), ("meta/tree.cc", f"fs/{FIRST}/low.h"),
                         ("gpu/load.cc", f"fs/{FIRST}/low.h"), (f"fs/{FIRST}/low.h", "gpu/load.h")):
        found = layering.upward(tree(GOOD | {path: [header]}))
        true(len(found) == 1 and found[0].startswith(f"{path}:2: "), str(found))


def test_a_room_that_includes_from_a_later_one_is_found():
    found = layering.upward(tree(GOOD | {f"fs/{FIRST}/low.h": [f"fs/{LAST}/high.h"]}))
    true(len(found) == 1 and f"fs/{LAST}/, which is above it" in found[0], str(found))


def test_the_rooms_of_io_and_meta_are_looked_at_too():
    for path, header in (("io/fd.cc", "io/objects/object_store.h"), ("meta/tree/tree.cc", "meta/steps/save.h")):
        found = layering.upward(tree(GOOD | {path: [header], header: []}))
        true(len(found) == 1 and found[0].startswith(f"{path}:2: ") and "above" in found[0], str(found))


def test_a_file_in_no_room_is_found():
    for path in ("fs/stray.h", "fs/attic/stray.h"):
        found = layering.upward(tree(GOOD | {path: ["io/fd.h"]}))
        true(len(found) == 1 and "is no room" in found[0], str(found))
