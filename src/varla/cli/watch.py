"""`varla watch`: what a model's memories hold after every token, as one HTML page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varla.box import model_folder, names_hint
from varla.cli.compare import label
from varla.cli.generate import load, open_text
from varla.cli.kinds import LAB, kind_of
from varla.cli.options import BOXED
from varla.cli.output import say
from varla.cli.reading import reading
from varla.cli.streams import visible

if TYPE_CHECKING:
    from torch import Tensor, nn

    from varla.watch import LayerTrace, Token, Watched

MOST = 512  # tokens of a page
USUAL = 256
CUT = "\N{REPLACEMENT CHARACTER}"  # an incomplete character; some tokenizers decode it to nothing


# From logits [T, vocab_size] to what the model says after each token.
Words = Callable[["Tensor"], list[str | None]]


@dataclass(frozen=True)
class Source:
    """A model that reads tokens [T], and the words for them."""

    model: "nn.Module"
    tokens: "Tensor"
    shown: "list[Token]"
    words: "Words"


def watch(
    folder: Annotated[
        Path,
        typer.Argument(
            help=f"Run of `train`, or folder of a language model, {BOXED}.", metavar="RUN_OR_MODEL", parser=model_folder
        ),
    ],
    other: Annotated[
        Path | None,
        typer.Argument(help="Another one, shown beside it on the same tokens.", metavar="OTHER", parser=model_folder),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Text that a language model reads.", metavar="TEXT")] = None,
    text_file: Annotated[Path | None, typer.Option(help="File with that text.", metavar="FILE")] = None,
    task: Annotated[
        bool, typer.Option("--task", help="Draw a sequence of the run's own task: the default for a run of `train`.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Which sequence of the task.")] = 0,
    layer: Annotated[
        list[int] | None,
        typer.Option(help="Only this layer, counted from 0. May be repeated. Default: as many as fit in 3 MB."),
    ] = None,
    tokens: Annotated[int, typer.Option(help=f"Most tokens, up to {MOST}.")] = USUAL,
    out: Annotated[Path, typer.Option(help="The page to write.", metavar="FILE")] = Path("watch.html"),
) -> None:
    """Show what a model's memories hold after every token: one HTML page that needs no network.

    The page draws S and A, and says which earlier keys the memory still answers right.
    """
    _check(text, text_file, task, seed, tokens, out)
    from varla.watch import trace, write

    folders = [folder] if other is None else [folder, other]
    sources = _sources(folders, text, text_file, task, seed, tokens)
    models = [
        _watched(name, source.words, *trace(source.model, source.tokens, name), layer)
        for name, source in zip(_label(folders), sources, strict=True)
    ]
    found = write(out, sources[0].shown, models)
    for model, (layers, bits) in zip(models, found, strict=True):
        left = len(model.layers) - len(layers)
        less = f"; {left} more do not fit in the page: choose by --layer" if left else ""
        rounded = f", rounded to {bits} bits" if bits < 16 else ""
        say(
            f"model    {model.name}: layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}{rounded}{less}"
        )
    say(f"written  {out}: {len(sources[0].shown)} tokens, {out.stat().st_size / 1e6:.1f} MB")


def _check(text: str | None, text_file: Path | None, task: bool, seed: int, tokens: int, out: Path) -> None:
    """Refuse what needs no model to be refused."""
    from varla.arguments import check_count

    check_count("--seed", seed, least=-(2**63))
    check_count("--tokens", tokens)
    if tokens > MOST:
        raise ValueError(f"--tokens must be at most {MOST}, the most that a page shows, got {tokens}")
    if sum((text is not None, text_file is not None, task)) > 1:
        raise ValueError("give one of --text, --text-file and --task, not several")
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out must end in .html, got {str(out)!r}")
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder: name a file")


def _sources(
    folders: Sequence[Path], text: str | None, text_file: Path | None, task: bool, seed: int, most: int
) -> list[Source]:
    """The models on the same tokens."""
    labs = [_is_lab(folder) for folder in folders]
    if len(set(labs)) > 1:
        run, model = sorted(folders, key=lambda folder: not labs[folders.index(folder)])
        raise ValueError(f"{run} is a run on a task, {model} a language model: they read no common tokens")
    if labs[0]:
        if text is not None or text_file is not None:
            raise ValueError(f"{folders[0]} is a run of `varla train`: it reads its task, not text; use --task")
        return _runs(folders, seed, most)
    if task:
        raise ValueError(f"{folders[0]} is a language model: it has no task; use --text or --text-file")
    if text is None and text_file is None:
        raise ValueError(f"{folders[0]} is a language model: give it a text to read, by --text or --text-file")
    return _models(folders, _read(text_file) if text is None else text, most)


def _is_lab(folder: Path) -> bool:
    """Whether the folder is a run of `varla train`, not a language model; an error if it is neither."""
    from varla.runs.folder import RunFolder

    run = RunFolder(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder{names_hint(folder)}")
    if run.config_file.is_file():
        return kind_of(run.read_config()) == LAB
    if (folder / "config.json").is_file():
        return False
    raise ValueError(f"{folder} holds neither a run of `varla train` (config.yaml) nor a language model (config.json)")


def _runs(folders: Sequence[Path], seed: int, most: int) -> list[Source]:
    import torch

    from varla.cli.evaluate import check_fits
    from varla.training import Run, build_task, trained_model
    from varla.watch import Token

    config = Run(folders[0]).config()
    drawn = build_task(config)
    if drawn.seq_len > most:
        raise ValueError(f"the sequences of {folders[0]} have {drawn.seq_len} tokens, the page shows {_limit(most)}")
    inputs, labels = (rows[0] for rows in drawn.batch(1, torch.Generator().manual_seed(seed)))
    texts, answers = drawn.words(inputs.tolist(), labels.tolist())
    shown = [Token(*each) for each in zip(texts, answers, strict=True)]

    def words(logits: "Tensor") -> list[str | None]:
        said = torch.where(labels < 0, labels, logits.argmax(-1))
        found: list[str | None] = drawn.words(inputs.tolist(), said.tolist())[1]
        return found

    sources = []
    for folder in folders:
        model, _ = trained_model(folder)
        check_fits(model, config)
        sources.append(Source(model.eval(), inputs, shown, words))
    return sources


def _models(folders: Sequence[Path], text: str, most: int) -> list[Source]:
    import torch

    from varla.session.text import encode
    from varla.watch import Token

    sources: list[Source] = []
    cuts: list[list[str]] = []  # the text up to each token
    for folder in folders:
        model, tokenizer = load(folder, "cpu")
        ids = [token for piece in encode([text], tokenizer) for token in piece]
        if not ids:
            raise ValueError("the text is empty: there is nothing to read")
        if len(ids) > most:
            raise ValueError(f"the text has {len(ids):,} tokens, the page shows {_limit(most)}")
        names = Names(tokenizer)
        shown = [Token(names[token]) for token in ids]
        cuts.append([names.text(ids[:i]).rstrip(CUT) for i in range(len(ids))])
        if cuts[-1] != cuts[0]:
            raise ValueError(f"the tokenizers of {folders[0]} and {folder} cut the text into different tokens")
        sources.append(Source(model.float(), torch.tensor(ids), shown, names.said))
    return sources


class Names:
    """What tokens look like on the page: spaces and line ends are visible."""

    VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def __getitem__(self, token: int) -> str:
        text = self.text([token])
        if not text or CUT in text:  # a part of a character, or a token of its own kind
            text = str(self.tokenizer.convert_ids_to_tokens(token))
        return visible(text.translate(self.VISIBLE))

    def text(self, tokens: list[int]) -> str:
        """The text of tokens."""
        found: str = self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return found

    def said(self, logits: "Tensor") -> list[str | None]:
        """The likeliest next token after each, [T, vocab_size] to T."""
        return [self[token] for token in logits[:, : len(self.tokenizer)].argmax(-1).tolist()]


def _label(folders: Sequence[Path]) -> list[str]:
    """A short name for each folder: `varla train-lm` calls every model's folder "model"."""
    label(folders)  # refuses the same folder twice
    whole = [folder.resolve() for folder in folders]
    names = [f"{path.parent.name}/{path.name}" if path.name == "model" else path.name for path in whole]
    return names if len(set(names)) == len(names) else label(folders)


def _watched(
    name: str, words: Words, layers: "list[LayerTrace]", logits: "Tensor", wanted: list[int] | None
) -> "Watched":
    """The model for the page, with the wanted layers."""
    from varla.watch import Watched

    known = {layer.index: layer for layer in layers}
    for index in wanted or ():
        if index not in known:
            allowed = ", ".join(map(str, known))
            raise ValueError(f"--layer {index}: {name} has no such layer with a memory (allowed: {allowed})")
    chosen = [known[index] for index in sorted(set(wanted))] if wanted else layers
    return Watched(name, chosen, words(logits))


def _read(path: Path | None) -> str:
    if path is None:
        return ""
    with open_text(path) as file, reading(str(path), file) as pieces:
        return "".join(pieces)


def _limit(most: int) -> str:
    return f"{most}: --tokens can be up to {MOST}" if most < MOST else f"at most {MOST}"
