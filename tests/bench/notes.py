"""What the sections of docs/benchmarks-tables.md are about. Their order is that of the page."""

ON_DISK = ", on the machine's disk"  # in the titles of sections whose image was not in memory
DAEMON = "The daemon's memory"

NOTES = {
    "Saves": """\
A save is `setxattr(MOUNT/steps, "user.ckptfs.save", TAG)`. It is durable when it returns. The alternatives are copies on
the same XFS. Before the clock starts, every file is opened, a block of 4 KiB of it is rewritten, and everything is synced.
The alternatives' sync is one syncfs of this file system, without a process of its own. The step or the copy is removed
between the rounds. Lower is better.""",
    "Saves of an unchanged state": """\
Each save has a tag of its own. Nothing is written between the saves.""",
    "A large model: saves of its swap state" + ON_DISK: """\
What DeepSpeed offloads of two ranks: for each parameter 2 bytes of weights in bf16, and 12 of master weights and
Adam's two moments in fp32. No two blocks are equal. All was written and synced before, and none of it is in memory.
`setxattr` and `ckptfs save` make the same save, from within a program and by a command. Times of commands include
their start, and all times a sync. The alternatives are copies on the same XFS; `cp -r` without the option does what
`--reflink=always` does. Each save begins with an empty disk. 3 rounds count, or fewer with `--pairs`; none comes
before them. Lower is better.""",
    "A large model: the space that a save of its swap state takes" + ON_DISK: """\
The growth of df by those saves. In full training every block of the state changes until the next save. So a save that
has shared all blocks costs its whole size by then, with ckptfs as with reflink.""",
    "A large model: checkpoints by torch.save" + ON_DISK: """\
Four files, named as a Trainer does, into the next step's folder, beside the step before: weights in bf16, and master
weights and Adam's two moments in fp32, 100 tensors each. Each file is made before the clock starts, and synced before
it stops. *Mostly frozen*: one tensor of 100 in each file differs from the step before. *Full training*: all do.
*torch.load*: of the same files, right after; they are compared when the clock has stopped. No file is in memory
before. Each pair of steps begins with an empty disk; only the second one is measured. 3 rounds count, or fewer with
`--pairs`; none comes before them. Lower is better.""",
    "A large model: the space that a checkpoint takes" + ON_DISK: """\
The growth of df by those saves.""",
    "Copies": """\
Common tools copy a tree of large files within the mount, and within native XFS. The source is not in memory. The time
includes a sync. `cp -r` shares blocks on both sides. `shutil` of Python before 3.14, `cp --reflink=never`, `tar`, `rsync`
and `dd` read and write. Each copy is compared with its source. *Mostly frozen weights*: the second save of 32 tensors, of
which 3 have changed, into the next step. Lower is better.""",
    "Copies: what they write, and the space they take": """\
Bytes written to the block device, and growth of df. Both are taken after the sync, in the last round.""",
    "Copies: what a wrong guess costs": """\
A step is written beside a step that has the same names and lengths, and other bytes. The alternative is a mount with
`-o adopt=off`. Each round has names of its own. *One file that is guessed*: the daemon is brought to guess this file. In
passthrough such a file goes through the daemon until it is closed, because the kernel asks once, at the open. The row
below shows what that alone costs. *Steps*: the daemon guesses by its own rule. It guesses less often after each wrong
guess, so it guesses few files of a run that changes all of its state. Files are written in pieces of 4 MiB. The time
includes a sync after each step. Lower is better.""",
    "Checkpoints of a Trainer": """\
The Hugging Face Trainer trains GPT-2 of 92 MB. The normalisations and the attention of one block train, everything else is
frozen. It saves model, optimizer and small files at each step. Each time includes a sync. The first save does not count.
restic and borg each store the run's next checkpoint from XFS, so their time and space add to those of XFS. Lower is
better.""",
    "Checkpoints of a Trainer: the space they take": """\
The median of the growth of df by each save.""",
    "DeepSpeed's copies": """\
Unmodified DeepSpeed copies the offloaded tensors by Python's copytree, in save_checkpoint and in load_checkpoint. The time
includes a sync. *Had the daemon nothing to do*: Python copies as many bytes, in memory, to a FUSE file system that answers
each WRITE at once and keeps nothing (tests/helpers/null_fuse.c). No daemon can be faster than that. On a disk in memory a
round trip for each 64 KiB takes longer than the copy. At the load, what native XFS has copied is still in memory, while
what ckptfs has shared is only on the disk. The last row of each load shows that difference. Lower is better.""",
    "DeepSpeed: a load into other ranks or sub-groups": """\
Both engines have two ranks. One has the step's sub-groups, and its load shares the swap files. The other has smaller ones, so each
rank reads its parts by the parameters' names, and swaps them out. The caches are dropped before each load. The peak is that of a
rank's resident memory (VmHWM) during the load. Lower is better.""",
    "DeepSpeed's copies: what they write to the device": """\
Bytes written to the block device by each copytree and its sync; the median.""",
    "Data in passthrough, before any save": """\
fio with libaio, O_DIRECT, 1 MiB, depth 8 for each file. Each file is read or overwritten whole by a thread of its own. An
overwrite ends with an fsync, which is part of the time. One file is 512 MiB; of four files each is 128 MiB. passthrough_hp
is libfuse's own example, over the native files. Higher is better. The bar is 0.95 of native, or 0.90 with 2 cores.""",
    "Data in passthrough, the first overwrite after a save": """\
Every block is shared with the step, so the overwrite allocates. The alternatives are native XFS, a native file that was
just copied by `cp --reflink=always`, and ckptfs without a save. The step is removed between the rounds.""",
    "Data in passthrough, later, the step kept": """\
A save was taken, its step is kept, and every block was overwritten once since.""",
    "Data through the daemon": """\
The daemon serves O_DIRECT requests through aligned memory of its own, also those that native XFS would refuse (or, on some
devices, serve wrongly). The alternative is native XFS with aligned requests. *52 bytes off*: fio's `iomem_align` and
`offset`. *The same way*: a program without a daemon that knows what O_DIRECT refuses. It writes whole pages by O_DIRECT,
and the two pages at the ends of each overwrite through the page cache (tests/helpers/unaligned_writer.c). So this row shows
what these two pages cost, whoever writes them.""",
    "Data through the daemon: what the processors allow": """\
Each byte crosses /dev/fuse by a copy that native I/O does not have. At the borders of unaligned requests the kernel reads
or copies a page. On a disk in memory the processors are the limit, not the disk. The table has the seconds that all
processors together spend on a GiB, and the rate at which all of them are busy. No daemon reaches a bar above that rate on
this machine. A real disk is slower than memory and leaves the processors idle.""",
    "Past the mount: loads and saves": """\
libckptfs loads and saves a file of 64 tensors on the mount. The alternative is fio on native XFS: io_uring with registered
buffers and files, O_DIRECT, 8 MiB, depth 16. A save ends when it is durable, as fio's write does. The memory that is loaded
into, or saved from, exists before the clock starts. The *twin* stands in for a GPU: it has memory of its own, and a thread
does its copies. A GPU was not measured. Higher is better. The limit of memory is the ring and 64 MiB.""",
    "Loaders": """\
Each loader runs in a process of its own, and the clock starts after its imports. So the time includes what its first load
costs: of ckptfs, the ring. The memory that is filled was touched before. `ckptfs.load(..., into=)` and `read(2)`, which is
one preadv, fill the tensors of a model. `torch.load(mmap=True)` and safetensors map the file, so what they return is copied
into such tensors. The others make tensors by themselves, from memory that malloc has kept; only fastsafetensors asks the
kernel for it. What is loaded is compared, after the clock has stopped. *From the disk*: nothing is in the page cache. *From
the page cache*: all of the file is. At the peak of memory the pages of a mapped file count, too. Lower is better.""",
    "Plans of groups": """\
One process makes the plan of a simulated group, as each rank of a real one does. The descriptions of all ranks are there
before the clock starts; their digests are checked while it runs. *From the cache*: a rank describes what it holds and finds
the plan that it made before. The exchange of the digests, 65 bytes a rank, is not in it: gloo passes them round a ring,
which takes 0.12 s for 4,096 ranks at 30 µs a step. torch DCP's planner gets the write items of all ranks as objects that
exist before the clock starts, and only one of its ranks does that. It has the largest group that it finishes in a minute
and 4 GiB. Lower is better.""",
    "Groups of ranks": """\
The ranks have three quarters of the state cut by rows, and the rest all of it. ckptfs saves on the mount, torch's DCP on the
same XFS without it. *Until training goes on*: the tensors may change. *Until durable*: the step is there. The copies of
`ckptfs, copies` are the memory that `Saver(copies=True)` keeps. Loads are from the disk, into the state. Lower is better.""",
    "Reading views": """\
`cat` of a view, and of the file that the view is made from, in passthrough. *In memory*: the file is in memory. *Warm*:
the view is, too. *For the first time*: nothing of the view is in memory. The fp32 view shares the blocks of the file, as a
reflink would, and has its own pages in the kernel's cache, so its first read comes from the disk. The daemon makes the bf16
view each time that the kernel has nothing of it. *Had cat never to wait*: the rate by the processor time of `cat` alone,
which no daemon can shorten. Higher is better.""",
    "A model out of a DeepSpeed checkpoint": """\
ZeRO-3, one rank, the optimizer in memory, because DeepSpeed's own tool reads no other checkpoint. Nothing is in memory
before. The time includes a sync of the result. Lower is better.""",
    "Thinning a step": """\
`ckptfs thin --to bf16` of a step with fp32 weights that is not in memory. fio reads the weights, writes half as many bytes
and reads these back, by O_DIRECT, 8 MiB, depth 16. The thin step's space is what it alone has on the disk. *A run*: the
next section has its figures. Lower is better.""",
    "Thinning the steps of a run: the space they take": """\
A run saves steps of 2 MiB of fp32 weights and 4 MiB for a resume, none of which shares anything with another one. The rules
are `keep_full=2`, `keep_every=100`, `keep_last=20` and `thin_to=bf16`. After every tenth save the growth of df is taken,
once rotation has done its work. *Theory*: the bytes of the two full steps, and half of those of the weights of the others.
*The same steps in full*: as they would be without `keep_full`.""",
    "Pushing a step": """\
The store is SeaweedFS on this machine, so client and server share the processors. The step has ten equal files. curl
PUTs as many bytes in objects of 64 MiB, as many in parallel. PUTs and bytes are those that the server has counted.
*The push beside it*: DeepSpeed trains on one processor and offloads its optimizer to the mount. Each save is pushed at
once. The daemon runs on the other processor, with the kernel's workers, which do here what a disk does by itself, and
with the server. The server has idle priority there, since in use it is another machine. The time is that of the steps,
without the saves. In the last row curl takes the place of the push. Higher is better for GiB/s, lower for times.""",
    "Reading a mounted remote": """\
The store is SeaweedFS on this machine. All read the same object, the file of a step; curl keeps nothing and checks
nothing, ckptfs checks a digest of each chunk. *All processors busy*: the seconds that all processors together, the
server's, too, spend on a GiB, and the rate that follows. No client reaches more here with as much work. *From the
cache*: neither file is in memory. Higher is better for GiB/s, lower for times.""",
    "Listing steps": """\
Each row of `ckptfs ls` says whether the step is complete, what it costs and what keeps it. Lower is better.""",
    "Removing a step": """\
On both sides the files share their blocks with other files. Lower is better.""",
    "Operations on names": """\
One thread of Python; its own cost is on all sides. passthrough_hp is libfuse's own example, over a native folder: it is the
floor of what FUSE costs, because it keeps no steps, no index and no records of its own. Lower is better.""",
    "Which file system under the store": """\
Stores of ckptfs on btrfs and on XFS, each with an image of its own, in the same rounds. Lower is better for times, higher
for GiB/s.""",
    "Which kernel": """\
Passthrough takes Linux 6.9 or newer. The same mount with `-o passthrough=off` stands for an older kernel: all data goes
through the daemon. Lower is better for times, higher for GiB/s.""",
    "Which options": """\
`adopt=on` and `odirect=safe` are the defaults. Lower is better for times, higher for GiB/s.""",
    "Against an older version": """\
This version and the version that `--against` names, each with a store of its own, in the same rounds. Higher is better for
GiB/s, lower for times. The bars stand in the sections of each part.""",
    DAEMON: """\
At the end of each part, and at the peak.""",
}


def order(title):
    """Returns a sort key: sections as in NOTES, those of the machine's disk after the others, the memory last."""
    base = title if title in NOTES else title.removesuffix(ON_DISK)
    return title == DAEMON, title.endswith(ON_DISK), list(NOTES).index(base)


def note(title):
    return NOTES[title] if title in NOTES else f"As *{title.removesuffix(ON_DISK)}*."
