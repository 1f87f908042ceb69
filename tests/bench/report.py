"""Formats results: a line for the terminal, a row of a Markdown table."""

import measure


def line(result):
    """Returns one result as a line for the terminal."""
    if isinstance(result, measure.Missing):
        return f"{result.title}: not measured: {result.reason}"
    if isinstance(result, measure.Note):
        return f"{result.title}: {result.text}"
    if isinstance(result, measure.Figures):
        return f"{result.title}: {', '.join(f'{column} {text}' for column, text in result.texts.items())}"
    if isinstance(result, measure.Limit):
        title, figure, limit = limit_figure(result)
        return f"{title}: {figure} (at most {limit}) {result.verdict}"
    low, high = result.quartiles
    bar = f"  bar {result.bar} {result.verdict}" if result.bar else ""
    return (
        f"{result.title}: {result.show(result.ours)}; {result.alternative}: {result.show(result.theirs)}; "
        f"ratio {ratio(result.ratio)} [{ratio(low)} .. {ratio(high)}]{bar}"
    )


def limit_figure(result):
    unit = f" {result.unit}" if result.unit else ""
    decimals = 1 if result.unit else 0
    return result.title, f"{result.figure:.{decimals}f}{unit}", f"{result.limit:.0f}{unit}"


def ratio(value):
    """Returns two decimals, or two significant digits if the value is small, but not next to nothing."""
    return f"{value:.2f}" if value >= 0.1 or value < 0.001 else f"{value:.2g}"


def mib(number):
    return f"{number / (1 << 20):.0f} MiB"


def table(results):
    """Returns the lines of a Markdown table."""
    rows = []
    if any(isinstance(result, measure.Row) for result in results):
        rows += ["| | ckptfs | alternative | | ratio | quartiles | min .. max | bar | |"]
        rows += ["|---|---:|---|---:|---:|---|---|---|---|"]
    elif all(isinstance(result, measure.Figures) for result in results):
        columns = list(results[0].texts)
        rows += [f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    elif all(isinstance(result, measure.Note) for result in results):
        rows += ["| | | | |", "|---|---|---|---|"]
    else:
        rows += ["| | | at most | |", "|---|---:|---:|---|"]
    return rows + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells(result))} |" for result in results]


def cells(result):
    if isinstance(result, measure.Missing):
        return [result.title, f"not measured: {result.reason}"]
    if isinstance(result, measure.Note):
        return [result.title, result.text, "", ""]
    if isinstance(result, measure.Figures):
        return [result.title, *result.texts.values()]
    if isinstance(result, measure.Limit):
        return [*limit_figure(result), verdict(result)]
    low, high = result.quartiles
    return [result.title, result.show(result.ours), result.alternative, result.show(result.theirs),
            f"**{ratio(result.ratio)}**", f"{ratio(low)} .. {ratio(high)}",
            f"{ratio(min(result.ratios))} .. {ratio(max(result.ratios))}", str(result.bar or ""), verdict(result)]


def verdict(result):
    return f"**{result.verdict}**" if result.missed else result.verdict
