"""The five verdicts on a claim, with their symbols and meanings."""

REPRODUCED = "reproduced"
CONDITIONAL = "reproduced with conditions"
NOT_REPRODUCED = "not reproduced"
FALSE = "false"
NOT_RUN = "not run"
VERDICTS = (REPRODUCED, CONDITIONAL, NOT_REPRODUCED, FALSE, NOT_RUN)

# Legible without colour, and in every font.
SYMBOLS = {REPRODUCED: "✓", CONDITIONAL: "◐", NOT_REPRODUCED: "✗", FALSE: "≠", NOT_RUN: "–"}
MEANINGS = {
    REPRODUCED: "our result agrees with the paper's statement",
    CONDITIONAL: "it agrees under conditions that the paper does not state; the note names them",
    NOT_REPRODUCED: "our result does not agree",
    FALSE: "there is a counter-example",
    NOT_RUN: "the runs it needs have no record",
}
