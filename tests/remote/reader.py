"""Reads a step from a folder remote. Written from docs/remote-format.md alone, so that a test can compare.

    python3 reader.py FOLDER STEP OUT [SLOT]      writes the files of STEP below OUT
"""

import json
import re
import sys
from collections import namedtuple
from pathlib import Path

try:
    from blake3 import blake3
except ImportError:  # then digests are not compared
    blake3 = None

MIB = 1 << 20
DIGEST = 32  # bytes
MOST_VOID = 160  # bytes; a commit is longer
DECISION = re.compile(r"(?P<order>[0-9a-f]{24})\.(?P<tag>[^./~\x00-\x1f\x7f][^/~\x00-\x1f\x7f]*)\.(?P<id>[0-9a-f]{16})")
# `key`: of its object; `digests`: of its chunks.
Entry = namedtuple("Entry", "kind mode uid gid mtime size target key digests")
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
        self.slots = self.document(".ckptfs/series/series.json", "remote")["slots"]

    def document(self, key, kind):
        found = json.loads((self.folder / key).read_bytes())
        known = found.pop("check")
        line = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
        check(blake3 is None or blake3(line.encode()).hexdigest().startswith(known), f"{key}: it is damaged")
        check(found["ckptfs"] == kind, f"{key}: it is {found['ckptfs']}")
        check(found["version"] == 2, f"{key}: it is of version {found['version']}, and this reader knows version 2")
        return found

    def decisions(self, kind):
        """What objects below .ckptfs/KIND/ are about, by the objects' names."""
        paths = (self.folder / ".ckptfs" / kind).glob("*")
        return {path.name: (found, path.stat()) for path in paths if (found := DECISION.fullmatch(path.name))}

    def commits(self, tag):
        """The decisions about the tag that are commits, also those that are gone, oldest first."""
        gone, steps = self.decisions("gone"), self.decisions("steps")
        for decision in gone:
            check(decision in steps, f".ckptfs/steps/{decision} is missing: the list is not whole")
        of_tag = [(found, facts) for found, facts in steps.values() if found["tag"] == tag and facts.st_size > MOST_VOID]
        of_tag.sort(key=lambda one: (-int(one[0]["order"], 16), one[1].st_mtime_ns, one[0]["id"]))
        return [found[0] for found, _ in of_tag]

    def commit(self, name):
        tag = name.partition("~")[0]
        named = {tag if k == 1 else f"{tag}~{k}": decision for k, decision in enumerate(self.commits(tag), 1)}
        check(name in named, f"{name}: there is no such step")
        key = f".ckptfs/steps/{named[name]}"
        commit = self.document(key, "commit")
        check(commit["name"] == named[name], f"{key}: it is the commit of {commit['name']}")
        pushes = [re.fullmatch(rf"{re.escape(tag)}/{slot}\.([0-9a-f]{{16}})", part["push"])
                  for slot, part in enumerate(commit["parts"])]
        check(all(pushes) and len(pushes) == self.slots, f"{key}: its parts are not one of each slot")
        check(pushes[0][1] == DECISION.fullmatch(named[name])["id"], f"{key}: it has another part of slot 0")
        return commit

    def part(self, named, save):
        key = ".ckptfs/parts/" + named["push"]
        content = (self.folder / key).read_bytes()
        check(len(content) == named["size"], f"{key}: another size")
        check_digest(content, named["digest"], key)
        first, _, content = content.partition(b"\n")
        check(first == b"ckptfs part 2", f"{key}: it begins with {first}, and this reader knows version 2")
        header, _, content = content.partition(b"\n")
        header = json.loads(header)
        check((header["push"], header["save"]) == (named["push"], save), f"{key}: of another push, or another save")
        check(header["slots"] == self.slots, f"{key}: of a remote of {header['slots']} slots")
        *lines, chunks = content.split(b"\n", header["entries"])
        check(len(chunks) == DIGEST * header["chunks"], f"{key}: another length")
        digests = (chunks[at:at + DIGEST].hex() for at in range(0, len(chunks), DIGEST))
        entries = {}
        for line in map(json.loads, lines):
            own = [next(digests) for _ in range(0, line.get("size", 0), MIB)]
            check(not {"..", ".", ""} & set(line["path"].split("/")) or not entries, f"{key}: path {line['path']}")
            check(line["path"] == "" or entries[line["path"].rpartition("/")[0]].kind == "folder", f"{key}: no folder")
            check(line["path"] not in entries, f"{key}: {line['path']} comes twice")
            entries[line["path"]] = Entry(line["kind"], line["mode"], line["uid"], line["gid"], tuple(line["mtime"]),
                                          line.get("size", 0), line.get("target"),
                                          self.file_key(header, line["path"]), own)
        check(next(digests, None) is None, f"{key}: more chunks than its files have")
        files = [entry for entry in entries.values() if entry.kind == "file"]
        for told in (header, named):
            there = len(files), sum(file.size for file in files)
            check((told["files"], told["bytes"]) == there, f"{key}: other files")
        return entries

    def file_key(self, header, path):
        tag, _, name = header["push"].partition("/")
        slot, _, push = name.partition(".")
        return f"{tag}.{push}/{path}" if self.slots == 1 else f"{tag}.{push}/slot-{slot}/{path}"

    def step(self, name, slot=None):
        """Entries by path; of one slot, or the union."""
        commit = self.commit(name)
        parts = [self.part(one, commit["name"]) for one in commit["parts"]]
        if slot is not None or len(parts) == 1:
            return parts[slot or 0]
        whole = {}
        for part in map(rename_ranks, reversed(parts)):
            whole |= part
        return dict(sorted(whole.items(), key=lambda one: one[0].encode()))

    def content(self, entry):
        with open(self.folder / entry.key, "rb") as file:
            for number, digest in enumerate(entry.digests):
                length = min(MIB, entry.size - number * MIB)
                content = file.read(length)
                check(len(content) == length, f"{entry.key}: it ends too early")
                check_digest(content, digest, f"{entry.key}: chunk {number}")
                yield content
            check(not file.read(1), f"{entry.key}: it is longer than {entry.size}")


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
