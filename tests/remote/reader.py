"""Reads a step from a folder remote. Written from docs/remote-format.md alone, so that a test can compare.

    python3 reader.py FOLDER STEP OUT [SLOT]      writes the files of STEP below OUT
"""

import json
import re
import struct
import sys
from collections import namedtuple
from pathlib import Path

try:
    from blake3 import blake3
except ImportError:  # then digests are not compared
    blake3 = None

MIB = 1 << 20
Entry = namedtuple("Entry", "kind mode uid gid mtime size target chunks")  # chunks: (digest, pack, offset, length)
RANKS = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_\d+_(?:model|optim)_states\.pt")
SWAP = re.compile(r"((?:(.*)/)?offloaded_(?:tensors|params))/rank(\d+)")


def check(condition, what):
    if not condition:
        raise ValueError(what)


def check_digest(content, wanted, what):
    check(blake3 is None or blake3(content).hexdigest() == wanted, f"{what}: another digest")


class Remote:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.slots = self.document("ckptfs.json", "remote")["slots"]

    def document(self, key, kind):
        found = json.loads((self.folder / key).read_bytes())
        check(found["ckptfs"] == kind, f"{key}: it is {found['ckptfs']}")
        check(found["version"] == 1, f"{key}: it is of version {found['version']}, and this reader knows version 1")
        return found

    def commit(self, name):
        tag, _, ordinal = name.partition("~")
        decisions = sorted((self.folder / "steps" / tag).glob("[0-9]*"), key=lambda one: int(one.name))
        check([int(one.name) for one in decisions] == list(range(1, len(decisions) + 1)), f"{tag}: a decision is missing")
        commits = [one for one in decisions if one.stat().st_size > 160]
        return self.document(f"steps/{tag}/{commits[int(ordinal or 1) - 1].name}", "commit")

    def part(self, named):
        key = "parts/" + named["push"]
        content = (self.folder / key).read_bytes()
        check(len(content) == named["size"], f"{key}: another size")
        check_digest(content, named["digest"], key)
        first, _, content = content.partition(b"\n")
        check(first == b"ckptfs part 1", f"{key}: it begins with {first}, and this reader knows version 1")
        header, _, content = content.partition(b"\n")
        header = json.loads(header)
        check((header["push"], header["number"]) == (named["push"], named["number"]), f"{key}: of another push")
        *lines, chunks = content.split(b"\n", header["entries"])
        check(len(chunks) == 48 * header["chunks"], f"{key}: another length")
        places = struct.iter_unpack("<32sIIII", chunks)
        entries = {}
        for line in map(json.loads, lines):
            own = []
            for number in range((line.get("size", 0) + MIB - 1) // MIB):
                digest, push, pack, offset, length = next(places)
                check(length == min(MIB, line["size"] - number * MIB), f"{key}: {line['path']}: length or codec {length:x}")
                own.append((digest.hex(), f"packs/{header['pushes'][push]['push']}/{pack}", offset, length))
            check(not {"..", ".", ""} & set(line["path"].split("/")) or not entries, f"{key}: path {line['path']}")
            check(line["path"] == "" or entries[line["path"].rpartition("/")[0]].kind == "folder", f"{key}: no folder")
            check(line["path"] not in entries, f"{key}: {line['path']} comes twice")
            entries[line["path"]] = Entry(line["kind"], line["mode"], line["uid"], line["gid"], tuple(line["mtime"]),
                                          line.get("size", 0), line.get("target"), own)
        check(next(places, None) is None, f"{key}: more chunks than its files have")
        return entries

    def step(self, name, slot=None):
        """Entries by path; of one slot, or the union."""
        parts = [self.part(one) for one in self.commit(name)["parts"]]
        if slot is not None or len(parts) == 1:
            return parts[slot or 0]
        whole = {}
        for part in map(rename_ranks, reversed(parts)):
            whole |= part
        return dict(sorted(whole.items(), key=lambda one: one[0].encode()))

    def content(self, entry):
        for digest, pack, offset, length in entry.chunks:
            with open(self.folder / pack, "rb") as file:
                file.seek(offset)
                content = file.read(length)
            check(len(content) == length, f"{pack}: it ends before {offset + length}")
            check_digest(content, digest, f"{pack} at {offset}")
            yield content


def rename_ranks(part):
    renamed = {}
    groups = {}
    for path, entry in part.items():
        if entry.kind == "folder" and (found := SWAP.fullmatch(path)):
            groups.setdefault((found[1], found[2] or ""), []).append((int(found[3]), path))
    for (group, beside), folders in groups.items():
        names = [path.rpartition("/") for path, entry in part.items() if entry.kind == "file"]
        ranks = {int(found[1]) for where, _, name in names if where == beside and (found := RANKS.fullmatch(name))}
        check(len(ranks) == len(folders), f"{group}: {len(folders)} folders of {len(ranks)} ranks")
        renamed |= {path: f"{group}/rank{rank:02}" for rank, (_, path) in zip(sorted(ranks), sorted(folders))}

    def new_path(path):
        found = re.match(SWAP.pattern + "(?=/)", path + "/")
        old = found and found[0]
        return renamed[old] + path[len(old):] if old in renamed else path

    return {new_path(path): entry for path, entry in part.items()}


def write(remote, entries, out):
    for path, entry in entries.items():
        target = Path(out, path)
        if entry.kind == "folder":
            target.mkdir()
        elif entry.kind == "link":
            target.symlink_to(entry.target)
        else:
            with open(target, "xb") as file:
                file.writelines(remote.content(entry))


if __name__ == "__main__":
    the_remote = Remote(sys.argv[1])
    write(the_remote, the_remote.step(sys.argv[2], *map(int, sys.argv[4:])), sys.argv[3])
