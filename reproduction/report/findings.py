"""The result in sentences: how the claims fared, what the most important ones came to, and the charts that show it.

Every sentence belongs to a verdict. If the records give a claim another verdict, a plain sentence takes its place.
"""

from collections.abc import Mapping, Sequence

from reproduction.claims import Value
from reproduction.report.charts import drawable
from reproduction.report.gather import Drawing, Report, Row, Section
from reproduction.report.numbers import many, number, spread
from reproduction.verdicts import CONDITIONAL, FALSE, NOT_REPRODUCED, NOT_RUN, REPRODUCED

KEY_CHARTS = 3

HEADLINE = ("P7-vla-24", "P18-vla-deltanet", "P13-unit-jacobian")
# Sentences for the verdicts that these claims are known to get.
SENTENCES: Mapping[str, Mapping[str, str]] = {
    "P7-vla-24": {
        CONDITIONAL: "VLA recalls 24 pairs with accuracy {ours}, as the paper says, under a condition that it does not "
        "state ({note}).",
        REPRODUCED: "VLA recalls 24 pairs with accuracy {ours}, as the paper says.",
    },
    "P18-vla-deltanet": {
        NOT_REPRODUCED: "With a learning rate tuned for each mechanism, VLA does not recall more than DeltaNet: "
        "the mean difference in accuracy is {ours}, its 95% interval {low} to {high}.",
    },
    "P13-unit-jacobian": {
        FALSE: "Proposition 2 is false: the spectral norm of a step is not always 1. The largest one found is {ours}.",
    },
    "P12-ratio": {
        REPRODUCED: "After 1000 random tokens linear attention's |S| is {ours} times as large as VLA's; "
        "the paper says {paper} times.",
    },
}

# The figures shown first, each with the claim that it is about.
CHARTS: Mapping[str, str] = {"capacity": "P7-vla-24", "fair-mqar-64": "P18-vla-deltanet", "state-norm": "P12-ratio"}

_PHRASES = {
    REPRODUCED: "{n} {are} reproduced",
    CONDITIONAL: "{n} only under conditions it does not state",
    NOT_REPRODUCED: "{n} {are} not reproduced",
    FALSE: "{n} {are} false",
    NOT_RUN: "{n} {have} not been run",
}


def headline(rows: Sequence[Row], counts: Mapping[str, int]) -> str:
    """How many claims have each verdict, in one sentence."""
    if not any(n for verdict, n in counts.items() if verdict != NOT_RUN):
        return f"None of the paper's {many(len(rows), 'claim')} has been run yet."
    parts = [
        _PHRASES[verdict].format(n=n, are="is" if n == 1 else "are", have="has" if n == 1 else "have")
        for verdict, n in counts.items()
        if n
    ]
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])}, and {parts[-1]}"
    return f"Of the paper's {many(len(rows), 'claim')}, {listed}."


def findings(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """The claims of HEADLINE that were run, each with its sentence."""
    found = {row.claim.id: row for row in rows if row.finding.verdict != NOT_RUN}
    return [(found[name], sentence(found[name])) for name in HEADLINE if name in found]


def sentence(row: Row) -> str:
    """A claim's result in a sentence: its own for this verdict, or else the claim, the verdict and both values."""
    finding = row.finding
    words = SENTENCES.get(row.claim.id, {}).get(finding.verdict)
    if words is None:
        paper = f"paper {number(row.claim.paper)}, " if row.claim.paper is not None else ""
        return f"The paper says: {row.claim.says}. This is {finding.verdict} ({paper}ours {spread(finding)})."
    values = {"ours": finding.ours, "low": finding.low, "high": finding.high, "paper": row.claim.paper}
    return words.format(note=finding.note, **{name: short(value) for name, value in values.items()})


def short(value: Value) -> str:
    """A value for a sentence: three digits behind the point are enough."""
    return f"{value:.3f}" if isinstance(value, float) and abs(value) < 100 else number(value)


def key_charts(report: Report) -> list[tuple[Section, Drawing, str]]:
    """The charts to show first: those of CHARTS, then others in order if some are missing.

    Each comes with its section, and with a sentence unless the headline has it.
    """
    rows = {row.claim.id: row for row in report.rows if row.finding.verdict != NOT_RUN and row.claim.id not in HEADLINE}
    known = {x.figure.name: (section, x) for section in report.sections for x in section.drawings if drawable(x.figure)}
    names = sorted(known, key=lambda name: list(CHARTS).index(name) if name in CHARTS else len(CHARTS))
    return [
        (*known[name], sentence(rows[CHARTS[name]]) if CHARTS.get(name) in rows else "") for name in names[:KEY_CHARTS]
    ]
