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
            f"After {_steps(results)} steps no mechanism recalls yet: the best is right at {_percent(results[0])}.",
            f"Naming any value of the sequence is right at {NAMING_ANY:.0%}. Recall comes suddenly, after hundreds of "
            "steps: give the demo more of them with --steps, and another folder with --out.",
        ]
    return [_headline(found), _same_heads(found), _same_bytes(found), _cache(found), _speed(found), *_late(results)]


def learned(result: Result) -> int:
    """How many of its seeds recall: their accuracy is above that of naming any value of the sequence."""
    return sum(run.accuracy >= _FOUND for run in result.runs)


def compare(one: Result, other: Result) -> str:
    """One result against another: only if all seeds of one are above all of the other, they are told apart."""
    if one.range[0] > other.range[1]:
        return "ahead of"
    return "behind" if one.range[1] < other.range[0] else "not told apart from"


def _headline(found: Mapping[str, Result]) -> str:
    softmax, ours = found["softmax"], found[OURS]
    best = max((each for each in found.values() if each is not softmax), key=lambda result: result.accuracy)
    other = "" if best is ours else f"; {OURS} recalls {_percent(ours)}"
    return (
        f"Softmax attention recalls {_percent(softmax)} of {PAIRS} pairs. Of the states that do not grow, that of "
        f"{best.name} recalls the most, {_percent(best)}{other}."
    )


def _same_heads(found: Mapping[str, Result]) -> str:
    ours = found[OURS]
    parts = [f"{compare(ours, found[name])} {name} ({_span(found[name])})" for name in SAME_HEADS]
    seeds = len(ours.runs)
    return f"With the same head size, {OURS} ({_span(ours)} over {seeds} seeds) is {' and '.join(parts)}."


def _same_bytes(found: Mapping[str, Result]) -> str:
    ours, wide = found[OURS], found[SAME_BYTES]
    verdict = {
        "ahead of": "here the bytes of A recall more than the same bytes in wider values.",
        "behind": "here the bytes of A are better spent on wider values.",
        "not told apart from": "these seeds do not tell which use of the bytes recalls more.",
    }[compare(ours, wide)]
    return (
        f"A second matrix A takes bytes. gated-deltanet with values twice as wide has about as many "
        f"({wide.state_bytes:,} against {ours.state_bytes:,}) and recalls {_span(wide)}: {verdict}"
    )


def _cache(found: Mapping[str, Result]) -> str:
    softmax, ours, longest = found["softmax"], found[OURS], CONTEXTS[-1]
    return (
        f"Softmax attention keeps every token: {softmax.state_bytes / ours.state_bytes:.1f} times the state of {OURS} "
        f"at the length of this task, and {softmax.sizes[longest] / ours.sizes[longest]:,.0f} times at "
        f"{longest:,} tokens."
    )


def _speed(found: Mapping[str, Result]) -> str:
    ours, rival = found[OURS].tokens_per_second, found["gated-deltanet"].tokens_per_second
    return f"On this CPU {OURS} trains at {ours / rival:.2f} times the speed of gated-deltanet: A costs time."


def _late(results: Sequence[Result]) -> list[str]:
    """Who has not found the task with every seed."""
    late = [
        f"{each.name} with {learned(each)} of {len(each.runs)}" for each in results if learned(each) < len(each.runs)
    ]
    if not late:
        return []
    return [
        f"Not every seed recalls after {_steps(results)} steps: {', '.join(late)}. Naming any value of the sequence is "
        f"right at {NAMING_ANY:.0%}."
    ]


def _steps(results: Sequence[Result]) -> int:
    return int(results[0].runs[0].record["config"]["train"]["steps"])


def _percent(result: Result) -> str:
    return f"{result.accuracy:.0%}"


def _span(result: Result) -> str:
    """ "0.45 to 0.48", or "0.45" if that is all."""
    least, most = (f"{value:.2f}" for value in result.range)
    return least if least == most else f"{least} to {most}"
