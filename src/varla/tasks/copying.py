"""The copy task, and the identity task that the paper's experiments ran under that name."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from varla.tasks.draws import uniform
from varla.tasks.task import Task, labels_at_end


@dataclass(frozen=True, kw_only=True)
class Copy(Task):
    """`c1 ... cm SEP c1 ... c(m-1)` with m = T/2. From SEP on, the answer at each position is the next token.

    The full sequence is c1 ... cm SEP c1 ... cm, T + 1 tokens; its last token is never an input. Position T/2 holds
    SEP. The label at position t >= T/2 is the token at t + 1, so all m tokens of the content are answers, the first
    one at SEP. Content is drawn with replacement from all tokens except SEP = vocab_size - 1.
    """

    name: ClassVar[str] = "copy"
    length_rule: ClassVar[str] = "one token and SEP"
    even_length: ClassVar[bool] = True

    @property
    def sep(self) -> int:
        """The token between the content and its copy."""
        return self.vocab_size - 1

    @property
    def chance(self) -> float:
        """Accuracy of guessing uniformly among the tokens other than SEP."""
        return 1 / self.sep

    def _least_length(self) -> int:
        return 2

    def _default_length(self) -> int:
        return 64

    def _content(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the content [B, T // 2]; returns it and the inputs [B, T] made from it."""
        half = self.seq_len // 2
        content = uniform(batch_size, half, range(self.sep), generator)
        sep = content.new_full((batch_size, 1), self.sep)
        return content, torch.cat([content, sep, content[:, : self.seq_len - half - 1]], dim=1)

    def _draw(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        content, inputs = self._content(batch_size, generator)
        return inputs, labels_at_end(inputs, content)

    def _describe(self) -> str:
        half = self.seq_len // 2
        return (
            f"Copying: {half} random tokens of 0..{self.sep - 1}, the separator {self.sep}, then the same tokens "
            f"again, {self.seq_len} inputs in total (the last token of the copy is only ever an answer); from the "
            f"separator on, the output at each position must be the next token of the copy."
        )

    def _token_name(self, position: int, token: int) -> str:
        return "SEP" if token == self.sep else f"x{token}"

    def _answer_name(self, token: int) -> str:
        return f"x{token}"


@dataclass(frozen=True, kw_only=True)
class CopyIdentity(Copy):
    """`c1 ... cm SEP c1 c2 ...` with m = T // 2. Each token after SEP is itself the answer at its position.

    The paper's copy table measures this: it needs only the identity map, no memory. An odd T repeats the content in
    full, an even T all but its last token. The paper's "T = 64" had 31 + 1 + 31 = 63 tokens, which is `seq_len=63`;
    64 scores as many positions. For a task that needs memory, see `copy`.
    """

    name: ClassVar[str] = "copy-identity"
    length_rule: ClassVar[str] = "one token, SEP and the token again"
    even_length: ClassVar[bool] = False

    def _least_length(self) -> int:
        return 3

    def _draw(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        _, inputs = self._content(batch_size, generator)
        return inputs, labels_at_end(inputs, inputs[:, self.seq_len // 2 + 1 :])

    def _describe(self) -> str:
        half = self.seq_len // 2
        return (
            f"The identity map in the layout of a copy task: {half} random tokens of 0..{self.sep - 1}, the separator "
            f"{self.sep}, then the first {self.seq_len - half - 1} of them again, {self.seq_len} inputs in total. "
            f"After the separator, the output at each position must be the token at that same position, which needs "
            f"no memory. The paper's copy experiment was run this way."
        )
