"""Plans of groups, from Python: the cache never gives a plan of other descriptions than those that there are."""

import errno
import pathlib
import random
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "gpu" / "python"))

from checking import equal, raises, true
from ckptfs import plans

RANKS, HOSTS = 6, [0, 0, 0, 1, 1, 1]


def whole(name, shape, dtype="BF16"):
    return name, dtype, tuple(shape), (0,) * len(shape), tuple(shape)


def rows(name, shape, rank, ranks, dtype="BF16"):
    """The rows of a tensor that a rank holds of `ranks`."""
    most = -(-shape[0] // ranks)
    begin = min(shape[0], rank * most)
    rest = tuple(shape[1:])
    return name, dtype, tuple(shape), (begin,) + (0,) * len(rest), (min(most, shape[0] - begin), *rest)


def state(rank):
    """What a rank holds at first: two sharded tensors, two replicated ones, one of a pair of ranks."""
    return [rows("embedding", (1024, 64), rank, RANKS), rows("head", (100, 3), rank, RANKS, "F32"),
            whole("norm", (100_000,), "F32"), whole("step", (), "I64"), whole(f"stage{rank // 2}", (700, 100))]


def content(plan):
    parts = [[tuple(getattr(part, name) for name, _ in part._fields_) for part in array]
             for array in (plan.owned, plan.held)]
    return parts, plan.holders, plan.loads


def made(make):
    """What is in the plan, or the words of the error."""
    try:
        return content(make())
    except OSError as problem:
        equal(problem.errno, errno.EINVAL, "the error of a plan")
        return str(problem)


class Changes:
    """Random changes to what ranks hold. Some make the ranks disagree."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def change(self, states):
        ranks = range(RANKS) if self.random.random() < 0.3 else [self.random.randrange(RANKS)]
        how = self.random.choice([self.retype, self.reshape, self.rename, self.move, self.swap, self.drop, self.add])
        seed = self.random.random()
        for rank in ranks:
            self.random.seed(seed)  # the same change on each rank
            states[rank] = how(list(states[rank]))
        self.random.seed(seed + 1)

    def pick(self, holdings):
        return self.random.randrange(len(holdings)) if holdings else None

    def replace(self, holdings, **changed):
        at = self.pick(holdings)
        if at is not None:
            old = dict(zip(("name", "dtype", "shape", "offsets", "sizes"), holdings[at], strict=True))
            holdings[at] = tuple((old | {key: value(old) for key, value in changed.items()}).values())
        return holdings

    def retype(self, holdings):
        types = self.random.sample(["BF16", "F16", "F32", "I64", "U8"], 5)
        return self.replace(holdings, dtype=lambda old: next(one for one in types if one != old["dtype"]))

    def rename(self, holdings):
        return self.replace(holdings, name=lambda old: old["name"] + self.random.choice("ab"))

    def reshape(self, holdings):
        """A whole that is one longer, of which the same box is held."""
        return self.replace(holdings, shape=lambda old: tuple(size + 1 for size in old["shape"]))

    def move(self, holdings):
        """The same tensor, another box of it."""
        def narrower(old):
            return tuple(max(size - self.random.randrange(3), 0) for size in old["sizes"])
        return self.replace(holdings, sizes=narrower)

    def swap(self, holdings):
        self.random.shuffle(holdings)
        return holdings

    def drop(self, holdings):
        at = self.pick(holdings)
        return holdings if at is None else holdings[:at] + holdings[at + 1:]

    def add(self, holdings):
        return holdings + [whole(f"more{self.random.randrange(10**6)}", (self.random.randrange(1, 90_000),))]


@pytest.mark.timeout(600)
def test_no_stale_plan_is_used(seed):
    """10,000 changes, many of them on one rank, and back: each plan is that of the descriptions there are now."""
    changes, first = Changes(seed), [state(rank) for rank in range(RANKS)]
    cache, planned, hits, refused, different = plans.PlanCache(4), [first], 0, 0, set()
    for number in range(10_000):
        chance = changes.random.random()
        # A change to the last that could be planned, or to the first, or back to one of those before.
        states = list(planned[-1] if chance < 0.5 else first if chance < 0.6 else changes.random.choice(planned[-3:]))
        if chance < 0.6:
            changes.change(states)
        descriptions = [plans.describe(one) for one in states]
        digests = [plans.digest(one) for one in descriptions]
        rank, all_of_it = (0, True) if changes.random.random() < 0.8 else (1, False)
        expected = made(lambda: plans.Plan(descriptions, HOSTS, rank, all_of_it))
        found = cache.find(digests, HOSTS, rank, all_of_it)
        ours = content(found) if found else made(lambda: cache.make(descriptions, digests, HOSTS, rank, all_of_it))
        true(ours == expected, f"change {number}: not the plan of these descriptions: {states}" * (ours != expected))
        true(len(cache) <= 4, "the cache is bounded")
        hits += found is not None
        refused += isinstance(expected, str)
        different.add(b"".join(digests))
        if not isinstance(expected, str):
            planned.append(states)
    print(f"{hits} plans from the cache, {refused} refused, {len(different)} different groups of descriptions")
    true(hits > 1000 and refused > 500 and len(different) > 3000, f"{hits}, {refused}, {len(different)}")


def test_the_cache_keeps_those_used_last():
    cache, groups = plans.PlanCache(2), []
    for size in (10, 20, 30):
        descriptions = [plans.describe([whole("w", (size,))])] * 2
        groups.append((descriptions, [plans.digest(one) for one in descriptions], [0, 1], 0))
    cache.make(*groups[0])
    cache.make(*groups[1])
    true(cache.find(*groups[0][1:]) is not None, "the first is there")
    cache.make(*groups[2])
    equal([cache.find(*group[1:]) is not None for group in groups], [True, False, True], "which are there")
    _, digests, hosts, rank = groups[0]
    others = ((digests, hosts, 1), (digests, [0, 0], rank), (digests, hosts, rank, False), (digests[:1], [0], rank))
    for other in others:
        equal(cache.find(*other), None, "a plan for another rank, other hosts, a load, fewer ranks")


def test_a_description_that_is_not_the_one_agreed_on():
    cache = plans.PlanCache()
    agreed, other = plans.describe([whole("w", (10,))]), plans.describe([whole("w", (11,))])
    with pytest.raises(ValueError, match="rank 1 sent another description"):
        cache.make([agreed, other], [plans.digest(agreed)] * 2, [0, 0], 0)
    equal(len(cache), 0, "plans that are kept")


def test_errors_are_words():
    with raises(errno.EINVAL, what="a type that is none"):
        plans.describe([whole("w", (10,), "torch.float32")])
    with raises(errno.EINVAL, what="a range beyond the box"):
        plans.boxes_of_range((0, 0), (4, 6), 3, 25)
    description = plans.describe([whole("w", (10,))])
    with raises(errno.EBADMSG, what="a description that is cut off"):
        plans.Plan([description, description[:-1]], [0, 0], 0)
    with raises(errno.EINVAL, what="a rank that is none"):
        plans.Plan([description], [0], 1)


def test_ranges_are_boxes():
    equal(plans.boxes_of_range((0, 0), (4, 6), 3, 15), [((0, 3), (1, 3)), ((1, 0), (1, 6)), ((2, 0), (1, 3))], "boxes")
    equal(plans.boxes_of_range((), (), 0, 1), [((), ())], "the box without dimensions")
