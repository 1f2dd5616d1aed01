"""The base of all tasks: a frozen value that draws batches of tokens and labels."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from varla.arguments import check_count
from varla.runs.metrics import EVAL
from varla.tasks.example import columns, table

IGNORE = -100
"""The label of a position that is not scored: PyTorch's cross entropy ignores it by default."""

# Asks for a default that depends on the other settings. The task replaces it when it is made, so the field of a task
# is always an int, and is typed so.
DEFAULT: Any = None


def labels_at_end(inputs: Tensor, answers: Tensor) -> Tensor:
    """Labels [B, T] for inputs [B, T]: the answers [B, scored] at the last positions, `IGNORE` before them."""
    return torch.cat([torch.full_like(inputs[:, answers.shape[1] :], IGNORE), answers], dim=1)


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A synthetic task. Its fields are its settings; equal settings and equal generators give equal batches.

    `vocab_size` is the number of token ids. `seq_len` is T, the length of the inputs (None: the task's default).
    """

    name: ClassVar[str]
    length_rule: ClassVar[str]
    even_length: ClassVar[bool] = False

    seq_len: int = DEFAULT
    vocab_size: int = 128

    def __post_init__(self) -> None:
        """Check every setting once, so that drawing a batch need not."""
        self._check()
        if self.seq_len is None:
            object.__setattr__(self, "seq_len", self._default_length())
        check_count("seq_len", self.seq_len, least=self._least_length(), because=self.length_rule)
        if self.even_length and self.seq_len % 2:
            raise ValueError(f"seq_len must be even for {self.name}, got {self.seq_len}")

    def batch(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw inputs [B, T] and labels [B, T], int64, on the generator's device.

        A label stands at the position whose output is scored (no further shift); elsewhere it is `IGNORE`.
        The same seed gives different batches on CPU and GPU, since their generators differ.
        """
        check_count("batch_size", batch_size)
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
        return self._draw(batch_size, generator)

    def settings(self) -> dict[str, Any]:
        """The name and every setting as plain values: `make(**task.settings()) == task`."""
        return {"name": self.name, **asdict(self)}

    def evaluations(self) -> dict[str, "Task"]:
        """The tasks to evaluate on, by name."""
        return {EVAL: self}

    @property
    @abstractmethod
    def chance(self) -> float:
        """Accuracy of guessing uniformly among the tokens that can be an answer."""

    @property
    def best(self) -> float:
        """The best possible accuracy, given the inputs up to the scored position.

        It is 1 if these determine every answer; a task with ambiguous questions overrides it.
        """
        return 1.0

    def describe(self) -> str:
        """One paragraph: what a sequence looks like, and what is scored."""
        return (
            f"{self._describe()} A guess among all possible answers is right with probability {self.chance:.4g}; "
            f"the best possible accuracy is {self.best:.4g}."
        )

    def example(self, generator: torch.Generator) -> str:
        """One random sequence as a table: position, input token, whether the output is scored, and the answer."""
        inputs, labels = (rows[0].tolist() for rows in self.batch(1, generator))
        tokens, answers = self.words(inputs, labels)
        shown = columns(tokens, answers, [self._is_filler(token) for token in inputs])
        scored = sum(answer is not None for answer in answers)
        given = ", ".join(f"{key}={value}" for key, value in asdict(self).items())
        return (
            f"{self.name} ({given})\n\n{table(shown)}\n\n"
            f"Scored: {scored} of {self.seq_len} positions, marked ?, where the output must name the answer."
        )

    def words(self, inputs: list[int], labels: list[int]) -> tuple[list[str], list[str | None]]:
        """Readable names of a sequence's tokens, and of its labels: None where nothing is scored."""
        tokens = [self._token_name(t, token) for t, token in enumerate(inputs)]
        return tokens, [None if label == IGNORE else self._answer_name(label) for label in labels]

    def _check(self) -> None:
        """Check all settings except `seq_len`, whose default depends on them. Tasks with more settings extend this."""
        check_count("vocab_size", self.vocab_size, least=self._least_vocab(), because=f"for {self.name}")

    def _least_vocab(self) -> int:
        return 2

    def _default_length(self) -> int:
        return self._least_length()

    def _is_filler(self, token: int) -> bool:
        return False

    @abstractmethod
    def _least_length(self) -> int: ...

    @abstractmethod
    def _draw(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def _describe(self) -> str: ...

    @abstractmethod
    def _token_name(self, position: int, token: int) -> str: ...

    @abstractmethod
    def _answer_name(self, token: int) -> str: ...
