"""Files that varla writes and reads. A damaged one is refused by its name, or reads as what was written."""

import random
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import ByT5Tokenizer
from typer.testing import CliRunner

import varla
from tests.cli.cases import TINY
from tests.fuzz.core import ACCEPTED, REFUSED, Attempt, Find, refused
from tests.fuzz.damage import damaged, damaged_json, damaged_tensors
from tests.ops.operators import KINDS, STATES, make_state
from tests.session.cases import tiny
from varla.files import digest
from varla.training import checkpoint

# Numbers for forged tensors.
WHOLE = (-1, 0, 1, 7, 40, 300, 2**31, 2**62, -(2**63))
REAL = (-1.0, 0.0, 1e-38, 1e38, float("nan"), float("inf"))


def states(folder: Path) -> Attempt:
    """Saved states of the operators."""
    originals = {}
    for kind in KINDS:
        state = make_state(kind, dtype=torch.float32)
        state.save(folder / kind)
        originals[kind] = (folder / kind).read_bytes(), digest(state.tensors())
    path = folder / "damaged.state"

    def attempt(draw: random.Random) -> str:
        kind = draw.choice(KINDS)
        data, wanted = originals[kind]
        path.write_bytes(damaged_tensors(data, draw))
        try:
            found = STATES[kind].load(path)
        except Exception as error:
            return refused(error, path.name)
        return _same(digest(found.tensors()), wanted)

    return attempt


def sessions(folder: Path) -> Attempt:
    """Saved sessions of a hybrid."""
    model = tiny(["vla", "softmax"])
    session = varla.Session(model).feed(range(5, 12))
    session.save(folder / "whole")
    data, wanted = (folder / "whole").read_bytes(), _session(session)
    path = folder / "damaged.session"

    def attempt(draw: random.Random) -> str:
        path.write_bytes(damaged_tensors(data, draw))
        try:
            found = varla.Session.load(path, model)
        except Exception as error:
            return refused(error, path.name)
        return _same(_session(found), wanted)

    return attempt


def forged(folder: Path) -> Attempt:
    """Sessions with other numbers and the right checksum: refused by name, or usable."""
    model, tokenizer = tiny(["vla", "softmax"]), ByT5Tokenizer(extra_ids=0)
    session = varla.Session(model, tokenizer).feed("Hello")
    list(session.generate_text(3, seed=1))
    path = folder / "forged.session"
    session.save(path)
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118

    def attempt(draw: random.Random) -> str:
        changed = {name: x.clone() for name, x in tensors.items()}
        for _ in range(draw.choice((1, 2))):
            x = changed[draw.choice(list(changed))].view(-1)
            x[draw.randrange(len(x))] = draw.choice(REAL if x.is_floating_point() else WHOLE)
        save_file(changed, path, {**metadata, "checksum": digest(changed)})
        try:
            found = varla.Session.load(path, model, tokenizer)
            list(found.generate_text(2, temperature=0))
        except Exception as error:
            return refused(error, path.name, "logits")
        return ACCEPTED

    return attempt


def _session(session: varla.Session) -> str:
    state = session._cache.state
    held = {} if state is None else state.tensors()
    return f"{session.position} {digest({**held, 'logits': session.logits})}"


def checkpoints(folder: Path) -> Attempt:
    """Checkpoints of `varla train`."""
    torch.manual_seed(0)
    model, optimizer, generator = _trained()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    path = checkpoint.save(folder / "checkpoints", 1, model, optimizer, generator, seconds=2.5)
    wanted = _training(model, optimizer, generator, 1, 2.5)
    files = {each.name: each.read_bytes() for each in sorted(path.iterdir())}

    def attempt(draw: random.Random) -> str:
        name = draw.choice(list(files))
        data = files[name]
        if draw.random() < 0.02:
            (path / name).unlink()
        else:
            (path / name).write_bytes((damaged_json if name.endswith(".json") else damaged_tensors)(data, draw))
        state = _trained()
        try:
            found = checkpoint.load(path, *state)
        except Exception as error:
            return refused(error, path.name, name)
        finally:
            (path / name).write_bytes(data)
        return _same(_training(*state, *found), wanted)

    return attempt


def _trained() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Generator]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    return model, torch.optim.AdamW(model.parameters()), torch.Generator().manual_seed(1)


def _training(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator, step: int, seconds: float
) -> str:
    moments = {
        f"{name}/{key}": x for name, each in model.named_parameters() for key, x in optimizer.state[each].items()
    }
    return f"{digest({**model.state_dict(), **moments, 'generator': generator.get_state()})} {step} {seconds}"


def tokens(folder: Path) -> Attempt:
    """Token files of `varla train-lm`: damaged ones are made again."""
    from varla.lm.text import byte_tokenizer, corpus

    for name in ("one", "two"):
        (folder / f"{name}.txt").write_text(f"A text, number {name}. " * 5)
    source, tokenizer, made = str(folder / "*.txt"), byte_tokenizer(), folder / "tokens"

    def read() -> str:
        found = corpus(source, tokenizer, made)
        return f"{found.tokens.tolist()} {found.starts.tolist()} {found.text_bytes}"

    wanted = read()

    def attempt(draw: random.Random) -> str:
        path = draw.choice(sorted(each for each in made.rglob("*") if each.is_file()))
        data = path.read_bytes()
        if draw.random() < 0.05:
            path.unlink()
        else:
            path.write_bytes((damaged_json if path.suffix == ".json" else damaged)(data, draw))
        try:
            found = read()
        except Exception as error:
            shutil.rmtree(made)
            read()
            return refused(error, path.parent.name)
        return _same(found, wanted)

    return attempt


def records(folder: Path) -> Attempt:
    """Settings, metrics and record of a run, as `varla compare` reads them. A changed number is another number."""
    from varla.cli.main import app
    from varla.runs.settings import dump
    from varla.training import train
    from varla.training.config import from_dict

    run = folder / "run"
    train(from_dict(TINY), run, device="cpu")
    (run / "config.yaml").write_text(dump(TINY))
    files = {name: (run / name).read_bytes() for name in ("config.yaml", "record.json", "metrics.jsonl")}

    def attempt(draw: random.Random) -> str:
        name = draw.choice(list(files))
        data = files[name]
        if name == "metrics.jsonl" and draw.random() < 0.5:
            lines = data.splitlines(keepends=True)
            place = draw.randrange(len(lines))
            changed = b"".join([*lines[:place], damaged_json(lines[place], draw) + b"\n", *lines[place + 1 :]])
        else:
            changed = (damaged_json if name == "record.json" else damaged)(data, draw)
        (run / name).write_bytes(changed)
        try:
            done = CliRunner().invoke(app, ["compare", str(run)])
        finally:
            (run / name).write_bytes(data)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        if done.exit_code == 2 and name not in done.stderr and run.name not in done.stderr:
            raise Find(f"the error names no file: {done.stderr}")
        return ACCEPTED if done.exit_code == 0 else REFUSED

    return attempt


def _same(found: str, wanted: str) -> str:
    if found != wanted:
        raise Find("loaded as other data")
    return ACCEPTED
