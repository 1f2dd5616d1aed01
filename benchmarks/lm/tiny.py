"""The model in the box: `python -m benchmarks.lm.tiny FOLDER` makes its text, trains it and writes its folder.

The recipe is configs/tiny.yaml. The text is downloaded to `--text` unless it is there. The run is in `--run`, as one of
`varla train-lm`: an interrupted run resumes, and a finished one is only written again. FOLDER gets the weights in
bfloat16, the tokenizer, record.json (settings, text, machine, scores) and README.md, the model card.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.lm import corpus
from benchmarks.lm.card import card
from varla.lm.folder import load_folder
from varla.lm.settings import LMSettings, from_dict
from varla.lm.training import evaluate, load_texts, train
from varla.runs.folder import RunFolder
from varla.runs.settings import load, override

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "configs/tiny.yaml"
PARTS = ("train", "validation")


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse(arguments)
    if not (given.text / "sources.json").is_file():
        with tempfile.TemporaryDirectory() as scratch:
            corpus.make(given.text, given.packages or Path(scratch), corpus.TEXTS["public-domain"])
    texts = [f"data.{part}={given.text / f'{part}.jsonl.xz'}" for part in PARTS]
    settings = from_dict(override(load(RECIPE), [*texts, *given.set]))
    trained = train(settings, given.run, resume=RunFolder(given.run).config_file.exists())
    text = json.loads((given.text / "sources.json").read_text())
    record = export(given.run, given.folder, settings, {**trained, "text": text})
    for context, found in record["scores"].items():
        print(f"validation, context {context}: {found['bits per byte']:.4f} bits per byte")
    size = sum(file.stat().st_size for file in given.folder.iterdir())
    print(f"{given.folder}: {record['parameters']:,} parameters, {size:,} bytes, {record['tokens/s']:,.0f} tokens/s")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.lm.tiny", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder of the model")
    parser.add_argument("--text", type=Path, default=Path("runs/tiny-text"), help="folder of the text (%(default)s)")
    parser.add_argument("--packages", type=Path, help="folder of the text's packages (default: a temporary one)")
    parser.add_argument("--run", type=Path, default=Path("runs/tiny"), help="folder of the run (%(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe")
    return parser.parse_args(arguments)


def export(run: Path, folder: Path, settings: LMSettings, trained: dict[str, Any]) -> dict[str, Any]:
    """Write the run's model in bfloat16, its record and its card; returns the record.

    Half as large a file is the only reason for bfloat16. By its config.json the model is loaded in float32, which is
    faster on most CPUs, and the scores are those of the rounded weights in float32.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load_folder(run / "model", device)
    model.to(torch.bfloat16).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2) + "\n")
    tokenizer.save_pretrained(folder)
    _, validation = load_texts(settings, tokenizer, run / "tokens")
    if validation is None:
        raise ValueError("data.validation names no text: the card needs scores")
    rows = int(settings.train["per_device_train_batch_size"])
    record = {
        **trained,
        "tokens seen": trained["steps"] * rows * settings.data.context,
        "scores before rounding": trained["scores"],
        "scores": evaluate(model.float(), validation, settings),
    }
    (folder / "record.json").write_text(json.dumps(record, indent=2) + "\n")
    (folder / "README.md").write_text(card(record))
    return record


if __name__ == "__main__":
    main()
