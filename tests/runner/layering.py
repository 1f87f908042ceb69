"""Which source may include which: lint/circles and lint/layers of tests/runner/main.py.

A unit is a header and its .cc: X.h and X.cc. Units of one folder must not include each other in a circle, and includes
point downwards only: from a layer to those below it, and within fs/ from a room to those before it. The order is below.
"""

import pathlib
import re

# Each layer, and those that it may include from.
LAYERS = {"io": (), "meta": ("io",), "gpu": ("io", "meta"), "fs": ("io", "meta")}
# The folders of fs/ from the bottom to the top: a file includes from its own room and from those before it.
ROOMS = ("base", "kernel", "open", "adopt", "views", "steps", "remote", "ops", "mount", "control", "remote_mount", "cli")
# Likewise those of io/ and meta/; the files that lie in none are below all of them.
LOWER_ROOMS = {"io": ("objects",),
               "meta": ("formats", "remote", "index", "blobs", "tree", "accounting", "store", "steps", "care")}

INCLUDE = re.compile(r'^#include "([^"]+)"')


class Include:
    """One #include line of ours: where it stands, and the unit it leads from and to."""

    def __init__(self, path, number, target):
        self.place = f"{path}:{number}"
        self.target = target
        self.source_unit = str(path.with_suffix(""))
        self.target_unit = str(pathlib.PurePath(target).with_suffix(""))

    def __str__(self):
        return f"{self.place}: #include \"{self.target}\""


def layer_of(unit):
    return unit.split("/")[0]


def room_of(unit):
    """The room of a unit of fs/; None for any other."""
    parts = unit.split("/")
    return parts[1] if parts[0] == "fs" and len(parts) > 2 else None


def height(unit):
    """How high a unit of io/ or meta/ stands there."""
    layer, *rooms, _ = unit.split("/")
    return 1 + LOWER_ROOMS[layer].index(rooms[0]) if rooms else 0


def read_includes(root):
    """All #include lines between units of the layers below `root`, in the order of files and lines."""
    root = pathlib.Path(root)
    files = sorted(path for layer in LAYERS for kind in ("*.h", "*.cc") for path in (root / layer).rglob(kind))
    found = []
    for file in files:
        path = pathlib.PurePath(file.relative_to(root))
        for number, line in enumerate(file.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if match and layer_of(match[1]) in LAYERS:
                found.append(Include(path, number, match[1]))
    return found


def reachable(graph, start):
    """The units that `start` includes, and what these include, and so on."""
    seen, waiting = set(), [start]
    while waiting:
        for unit in graph.get(waiting.pop(), ()):
            if unit not in seen:
                seen.add(unit)
                waiting.append(unit)
    return seen


def circles(includes):
    """Complaints about units that include each other in a circle."""
    graph = {}
    for one in includes:
        if one.source_unit != one.target_unit:
            graph.setdefault(one.source_unit, set()).add(one.target_unit)
    reach = {unit: reachable(graph, unit) for unit in graph}
    found = []
    for unit in sorted(graph):
        if unit in reach[unit] and not any(unit in circle for circle in found):
            found.append({other for other in reach[unit] if unit in reach.get(other, ())})
    complaints = []
    for circle in found:
        complaints.append("these include each other: " + ", ".join(sorted(circle)))
        complaints += [f"  {one}" for one in includes if one.source_unit in circle and one.target_unit in circle
                       and one.source_unit != one.target_unit]
    return complaints


def upward(includes):
    """Complaints about includes from a layer, or a room, above."""
    complaints = []
    for one in includes:
        layer, target = layer_of(one.source_unit), layer_of(one.target_unit)
        room, target_room = room_of(one.source_unit), room_of(one.target_unit)
        if target != layer and target not in LAYERS[layer]:
            complaints.append(f"{one}: {layer}/ includes from {target}/")
        elif layer == "fs" and room not in ROOMS:
            complaints.append(f"{one}: fs/{room or ''} is no room of fs/, which has " + ", ".join(ROOMS))
        elif room in ROOMS and target_room in ROOMS and ROOMS.index(target_room) > ROOMS.index(room):
            complaints.append(f"{one}: fs/{room}/ includes from fs/{target_room}/, which is above it")
        elif layer == target and layer in LOWER_ROOMS and height(one.target_unit) > height(one.source_unit):
            complaints.append(f"{one}: it is of a room of {layer}/ that is above")
    return complaints
