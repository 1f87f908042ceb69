"""Interleaved rounds of measurements, and the rows made from them: ratios of pairs taken in the same round."""

import dataclasses
import statistics

# How a figure is printed: (factor, unit, decimals). Figures are bytes per second, seconds per
# operation, or bytes.
RATE = (1 / (1 << 30), "GiB/s", 2)
SECONDS = (1, "s", 3)
MILLISECONDS = (1e3, "ms", 1)
MICROSECONDS = (1e6, "µs", 1)
MEBIBYTES = (1 / (1 << 20), "MiB", 1)


def rounds(contestants, count):
    """Runs each contestant once per round, in `count` rounds after one that is not counted. The order rotates.

    `contestants` maps a name to a function that returns its figure. The result maps each name to its `count` figures.
    """
    names = list(contestants)
    figures = {name: [] for name in names}
    for number in range(count + 1):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            figure = contestants[name]()
            if number > 0:
                figures[name].append(figure)
    return figures


@dataclasses.dataclass(frozen=True)
class Bar:
    """The value that the median of the ratios must reach (at least) or not exceed (at most)."""

    value: float
    at_least: bool

    def met(self, ratio):
        return ratio >= self.value if self.at_least else ratio <= self.value

    def __str__(self):
        return f"{'≥' if self.at_least else '≤'} {self.value:.2f}"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: ckptfs against one alternative, round by round."""

    title: str
    alternative: str
    unit: tuple
    ours: list
    theirs: list
    bar: Bar | None = None

    @property
    def ratios(self):
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self):
        return statistics.median(self.ratios)

    @property
    def quartiles(self):
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high

    @property
    def missed(self):
        return self.bar is not None and not self.bar.met(self.ratio)

    @property
    def verdict(self):
        if self.bar is None:
            return ""
        return "ok" if not self.missed else "below" if self.bar.at_least else "above"

    def show(self, figures):
        factor, unit, decimals = self.unit
        return f"{statistics.median(figures) * factor:.{decimals}f} {unit}"


@dataclasses.dataclass(frozen=True)
class Limit:
    """A figure that must not exceed a limit, without an alternative to compare with."""

    title: str
    figure: float
    limit: float
    unit: str

    @property
    def missed(self):
        return self.figure > self.limit

    @property
    def verdict(self):
        return "above" if self.missed else "ok"


@dataclasses.dataclass(frozen=True)
class Missing:
    """A row that this machine cannot measure."""

    title: str
    reason: str
    missed = False


@dataclasses.dataclass(frozen=True)
class Figures:
    """A line of figures that are only reported. All lines of its table have the same columns."""

    title: str
    texts: dict  # by column
    missed = False


@dataclasses.dataclass(frozen=True)
class Note:
    """A figure that is only reported, without a bar and an alternative."""

    title: str
    text: str
    missed = False
