"""What the demo's results show, in sentences: computed from them, whatever they are."""

from collections.abc import Mapping, Sequence

from varla.demo.runs import CONTEXTS, PAIRS, Result

OURS = "gated-vla"
SAME_HEADS = ("gated-deltanet", "deltanet")
SAME_BYTES = "gated-deltanet, wide"
NAMING_ANY = 1 / PAIRS  # accuracy of naming any value of the sequence
_FOUND = 1.5 * NAMING_ANY  # below this, a seed has not found that keys belong to values


def sentences(results: Sequence[Result]) -> list[str]:
    """The headline, then a sentence for each comparison."""
    found = {result.name: result for result in results}
    if not any(learned(result) for result in results):
        return [
            f"After {_steps(results)} no mechanism recalls yet: the best is right at {_percent(results[0])}.",
            f"Naming any value of the sequence is right at {NAMING_ANY:.0%}. Recall comes suddenly, after hundreds of "
            "steps: give the demo more of them with --steps, and another folder with --out.",
        ]
    return [_headline(found), _same_heads(found), _same_bytes(found), _cache(found), _speed(found), *_late(results)]


def learned(result: Result) -> int:
    """How many of its seeds recall: their accuracy is above that of naming any value of the sequence."""
    return sum(run.accuracy >= _FOUND for run in result.runs)


def seeds_ahead(one: Result, other: Result) -> int:
    """With how many seeds one recalls more than the other: runs of a seed have the same data and shared weights."""
    return sum(mine.accuracy > theirs.accuracy for mine, theirs in zip(one.runs, other.runs, strict=True))


def overlap(one: Result, other: Result) -> bool:
    """Whether some seed of one recalls no more than some seed of the other, and the other way round."""
    return one.range[0] <= other.range[1] and other.range[0] <= one.range[1]


def _headline(found: Mapping[str, Result]) -> str:
    softmax, ours = found["softmax"], found[OURS]
    best = max((each for each in found.values() if each is not softmax), key=lambda result: result.accuracy)
    other = "" if best is ours else f"; {OURS} recalls {_percent(ours)}"
    return (
        f"Softmax attention recalls {_percent(softmax)} of {PAIRS} pairs. Of the states that do not grow, that of "
        f"{_spoken(best)} recalls the most, {_percent(best)}{other}."
    )


def _same_heads(found: Mapping[str, Result]) -> str:
    ours = found[OURS]
    parts = [
        f"{name} ({_span(found[name])}) with {seeds_ahead(ours, found[name])} of {len(ours.runs)} seeds"
        for name in SAME_HEADS
    ]
    close = [name for name in SAME_HEADS if overlap(ours, found[name])]
    doubt = f" The range of {OURS} overlaps that of {' and of '.join(close)}: more seeds are needed." if close else ""
    return f"With the same head size, {OURS} ({_span(ours)}) recalls more than {', and more than '.join(parts)}.{doubt}"


def _same_bytes(found: Mapping[str, Result]) -> str:
    ours, wide = found[OURS], found[SAME_BYTES]
    ahead, seeds = seeds_ahead(ours, wide), len(ours.runs)
    if ahead == seeds:
        verdict = "Here the bytes of A recall more."
    elif ahead == 0:
        verdict = "Here the bytes of A are better spent on wider values."
    else:
        verdict = (
            f"The seeds do not agree which use of the bytes is better: {OURS} recalls more with {ahead} of {seeds}."
        )
    return (
        f"The matrix A takes bytes. gated-deltanet with values twice as wide takes about as many ({wide.state_bytes:,} "
        f"against {ours.state_bytes:,}), and recalls {_span(wide)}. {verdict}"
    )


def _cache(found: Mapping[str, Result]) -> str:
    softmax, ours, longest = found["softmax"], found[OURS], CONTEXTS[-1]
    return (
        f"Softmax attention keeps every token: {softmax.state_bytes / ours.state_bytes:.1f} times the state of {OURS} "
        f"at the length of this task, and {softmax.sizes[longest] / ours.sizes[longest]:,.0f} times at "
        f"{longest:,} tokens."
    )


def _speed(found: Mapping[str, Result]) -> str:
    ratio = found[OURS].tokens_per_second / found["gated-deltanet"].tokens_per_second
    reason = ": A costs time" if ratio < 1 else ""
    return f"On this CPU {OURS} trains at {ratio:.2f} times the speed of gated-deltanet{reason}."


def _late(results: Sequence[Result]) -> list[str]:
    """Who has not found the task with every seed."""
    late = [
        f"{each.name} with {learned(each)} of {len(each.runs)}" for each in results if learned(each) < len(each.runs)
    ]
    if not late:
        return []
    return [
        f"Not every seed recalls after {_steps(results)}: {', '.join(late)}. Naming any value of the sequence is "
        f"right at {NAMING_ANY:.0%}."
    ]


def _steps(results: Sequence[Result]) -> str:
    count = int(results[0].runs[0].record["config"]["train"]["steps"])
    return "1 step" if count == 1 else f"{count} steps"


def _spoken(result: Result) -> str:
    """Its name within a sentence."""
    name, _, wide = result.name.partition(", ")
    return f"{name} with {wide} values" if wide else name


def _percent(result: Result) -> str:
    return f"{result.accuracy:.0%}"


def _span(result: Result) -> str:
    """ "0.45 to 0.48", or "0.45" if that is all."""
    least, most = (f"{value:.2f}" for value in result.range)
    return least if least == most else f"{least} to {most}"
