"""One sequence through one model, of any length."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from varla.arguments import check_count
from varla.session import file
from varla.session.sampling import Sampling
from varla.session.text import Decoder, encode

if TYPE_CHECKING:
    from varla.models import VarlaForCausalLM

PIECE = 2048  # most tokens in one call of the model
Tokens = Tensor | Iterable[int]
StopAt = int | str | Iterable[int | str] | None


class Session:
    """The state of a model that reads and writes one sequence of any length.

        session = varla.Session(model, tokenizer)
        session.feed("Once upon a time")
        print(*session.generate_text(100, temperature=0.8, seed=1), sep="")
        session.save("story.safetensors")
        session = varla.Session.load("story.safetensors", model, tokenizer)

    The size of the state is constant, except for softmax layers: their cache grows with every token, in memory and in
    the file. How the input is cut into calls changes results by rounding only. A loaded or forked session continues
    bit for bit as the first would.
    """

    def __init__(self, model: "VarlaForCausalLM", tokenizer: Any = None):
        """An empty session. Only text needs the tokenizer, one of transformers'."""
        _check_model(model)
        _check_tokenizer(tokenizer, model.get_input_embeddings().num_embeddings)
        self.model, self.tokenizer = model, tokenizer
        self.reset()

    def reset(self) -> "Session":
        """Forget everything."""
        from varla.models import VarlaCache

        self._cache: VarlaCache = VarlaCache(self.model.config)
        self._logits: Tensor | None = None
        self._decoder: Decoder | None = None
        return self

    # Reading.

    def feed(self, tokens: Tokens | str) -> "Session":
        """Read more tokens or text; returns the session.

        Tokens are integers [T] or [1, T], as a tensor, an array, a list or any iterable, even an endless one. They are
        read PIECE at a time. A tensor, array or list with a wrong token is not read at all; an iterator is read up to
        the piece with the first wrong token.

        Each call encodes its text separately, without special tokens: no token spans two calls, and feeding "ab" may
        differ from feeding "a", then "b". Long text is encoded in pieces, cut at line ends where there are any.
        """
        if isinstance(tokens, str):
            self.feed_text([tokens])
        elif isinstance(tokens, Iterator):
            while piece := list(islice(tokens, PIECE)):
                self._read(self._check(_tensor(piece)))
        else:
            self._read(self._check(_tensor(tokens)))
        return self

    def feed_text(self, texts: Iterable[str]) -> "Session":
        """Read the strings as one text, for example the lines of a file that is too large for one string."""
        tokenizer = self._need_tokenizer("text can be fed")
        if not isinstance(texts, Iterable):
            raise TypeError(f"texts must be strings, one after the other, got {type(texts).__name__}")
        for ids in encode(texts, tokenizer):
            self._read(self._check(torch.tensor(ids, dtype=torch.int64)))
        return self

    @torch.no_grad()
    def _read(self, ids: Tensor) -> None:
        """Read ids [T], a piece at a time. If the model fails, the piece is not read at all."""
        for begin in range(0, ids.shape[0], PIECE):
            piece = ids[begin : begin + PIECE]
            cache = self._cache.detach()  # the same tensors: nothing is updated in place
            out = self.model(piece[None].to(self.model.device), past_key_values=cache, use_cache=True, logits_to_keep=1)
            self._cache, self._logits, self._decoder = cache, out.logits[0, -1].clone(), None

    def _check(self, ids: Tensor) -> Tensor:
        """The same ids [T]; an error unless the model has an embedding for each."""
        from varla.models.checks import check_vocabulary

        check_vocabulary("tokens", ids, self.model.get_input_embeddings().num_embeddings)
        return ids

    # Results.

    @property
    def position(self) -> int:
        """Tokens read."""
        return int(self._cache.tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers' states and the logits."""
        return int(self._cache.nbytes) + (0 if self._logits is None else self._logits.nbytes)

    @property
    def logits(self) -> Tensor:
        """Logits of the next token, [vocab_size], on the model's device."""
        if self._logits is None:
            raise ValueError("nothing was fed yet: a next token follows from at least one before it")
        return self._logits.clone()

    def probabilities(
        self, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
    ) -> Tensor:
        """Probabilities of the next token, [vocab_size] float64 on the CPU: `generate` draws from them."""
        return Sampling(temperature, top_k, top_p).probabilities(self.logits)

    # Writing.

    def generate(
        self,
        max_new_tokens: int | None = None,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: StopAt = None,
    ) -> Iterator[int]:
        """An iterator of new tokens. The session has read exactly the tokens that came out: leave the loop at any time.

        Args:
            max_new_tokens: the most tokens. None: until it stops.
            temperature: 0 for the most likely token every time.
            top_k: draw only from this many of the most likely tokens.
            top_p: draw only from the fewest most likely tokens whose probabilities sum to this.
            seed: of the draws. None: PyTorch's own generator.
            stop: a token or several that end the iterator, which yields them last. None: the model's end-of-text token,
                if it has one; () for none.
        """
        tokens, strings = self._stops(stop)
        if strings:
            raise TypeError(f"stop must be token ids here, got {strings[0]!r}; generate_text stops at text")
        return self._generate(*self._choice(max_new_tokens, temperature, top_k, top_p, seed), tokens)

    def generate_text(
        self,
        max_new_tokens: int | None = None,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: StopAt = None,
    ) -> Iterator[str]:
        """The same as text, in pieces of whole characters. `stop` may hold text as well as tokens.

        It stops after the piece that completes a stop text. Special tokens have no text. A character that is incomplete
        at the end comes out of the next call, unless something is fed before.
        """
        tokenizer = self._need_tokenizer("there is text")
        tokens, strings = self._stops(stop)
        choice = self._choice(max_new_tokens, temperature, top_k, top_p, seed)
        return self._generate_text(tokenizer, self._generate(*choice, tokens), strings)

    def _choice(
        self, count: int | None, temperature: float, top_k: int | None, top_p: float | None, seed: int | None
    ) -> tuple[int | None, Sampling, torch.Generator | None]:
        """Check the arguments now: an iterator would do so at its first token."""
        check_count("max_new_tokens", count, least=0, none_means="until it stops")
        check_count("seed", seed, least=0, none_means="PyTorch's own generator")
        sampling = Sampling(temperature, top_k, top_p)
        _ = self.logits  # raises if nothing was fed
        return count, sampling, None if seed is None else torch.Generator().manual_seed(seed)

    def _generate(
        self, count: int | None, sampling: Sampling, generator: torch.Generator | None, stop: set[int]
    ) -> Iterator[int]:
        made = 0
        while count is None or made < count:
            token = sampling.draw(self.logits, generator)
            self._read(torch.tensor([token]))
            made += 1
            yield token
            if token in stop:
                return

    def _generate_text(self, tokenizer: Any, tokens: Iterator[int], stops: list[str]) -> Iterator[str]:
        longest = max(map(len, stops), default=1)
        tail = ""
        decoder = Decoder(tokenizer) if self._decoder is None else self._decoder
        for token in tokens:
            text = decoder.add(token)
            self._decoder = decoder  # _read has dropped it
            if not text:
                continue
            yield text
            tail += text
            if any(each in tail for each in stops):
                return
            tail = tail[len(tail) - longest + 1 :] if longest > 1 else ""

    def _stops(self, stop: StopAt) -> tuple[set[int], list[str]]:
        """(tokens, texts) that end a generation."""
        whose = "" if stop is not None else ", its end-of-text token"
        if stop is None:
            found = self.model.generation_config.eos_token_id
            stop = self.model.config.eos_token_id if found is None else found
        given: list[Any] = [] if stop is None else [stop]
        if isinstance(stop, Iterable) and not isinstance(stop, str):
            given = list(stop)
        known = self.model.get_input_embeddings().num_embeddings
        tokens, strings = set(), []
        for each in given:
            if isinstance(each, str) and each:
                strings.append(each)
            elif isinstance(each, int) and not isinstance(each, bool):
                if not 0 <= each < known:
                    raise ValueError(f"stop must be from 0 to {known - 1} (the model's vocabulary), got {each}{whose}")
                tokens.add(each)
            else:
                raise TypeError(f"stop must be token ids or text that is not empty, got {each!r}")
        return tokens, strings

    def _need_tokenizer(self, what: str) -> Any:
        if self.tokenizer is None:
            raise ValueError(f"{what} only with a tokenizer: Session(model, tokenizer)")
        return self.tokenizer

    # Copies and files.

    def fork(self) -> "Session":
        """An independent session with the same past. It shares the model and no other memory."""
        copy = Session(self.model, self.tokenizer)
        copy._cache = self._cache.clone()
        copy._logits = None if self._logits is None else self._logits.clone()
        copy._decoder = None if self._decoder is None else self._decoder.clone()
        return copy

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one safetensors file, whole or not at all. It replaces only saved sessions.

        The file's size does not depend on the number of tokens, except with softmax layers.
        """
        file.save(path, self.model, file.Content(self._cache, self._logits, self._decoder))

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: "VarlaForCausalLM", tokenizer: Any = None) -> "Session":
        """Read a file of `save`, for a model with the same settings and weights, on any device.

        Anything else is a ValueError that says what is wrong.
        """
        session = cls(model, tokenizer)
        found = file.load(path, model, tokenizer)
        session._cache, session._logits, session._decoder = found.cache, found.logits, found.decoder
        return session

    def __repr__(self) -> str:
        return f"Session({self.position} tokens read, {self.nbytes} bytes)"


def _check_model(model: object) -> None:
    from varla.models import VarlaForCausalLM

    if not isinstance(model, VarlaForCausalLM):
        path = isinstance(model, (str, os.PathLike))
        hint = "; VarlaForCausalLM.from_pretrained(FOLDER) loads one" if path else ""
        raise TypeError(f"model must be a varla.models.VarlaForCausalLM, got {type(model).__name__}{hint}")


def _check_tokenizer(tokenizer: Any, known: int) -> None:
    if tokenizer is None:
        return
    if not (callable(tokenizer) and hasattr(tokenizer, "decode") and hasattr(tokenizer, "__len__")):
        raise TypeError(f"tokenizer must be a tokenizer of transformers', or None, got {type(tokenizer).__name__}")
    if len(tokenizer) > known:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, the model embeddings for {known}: is it another model's?"
        )


def _tensor(tokens: Any) -> Tensor:
    """Tokens as [T] int64 on the CPU; an error for anything else."""
    if not isinstance(tokens, Tensor):
        if isinstance(tokens, (bytes, dict)) or not hasattr(tokens, "__iter__"):
            raise TypeError(f"tokens must be text or integers [T], got {type(tokens).__name__}")
        if not hasattr(tokens, "dtype"):
            tokens = list(tokens)
        try:
            tokens = torch.as_tensor(tokens) if len(tokens) else torch.zeros(0, dtype=torch.int64)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise TypeError(f"tokens must be text or integers [T]: {error}") from error
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise TypeError(f"tokens must be integers, got {str(tokens.dtype).removeprefix('torch.')}")
    if tokens.dim() == 2 and tokens.shape[0] == 1:
        tokens = tokens[0]
    if tokens.dim() != 1:
        raise ValueError(f"tokens must have shape [T], or [1, T]: a session is one sequence, got {list(tokens.shape)}")
    found: Tensor = tokens.detach().to("cpu", torch.int64)
    return found
