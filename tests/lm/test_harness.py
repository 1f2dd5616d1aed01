"""lm-evaluation-harness on a saved folder, with a task of our own: the numbers are those of the plain forward."""

import json

import pytest
import torch
from typer.testing import CliRunner

from tests.lm.cases import settings, write_text
from varla.lm.training import train

pytest.importorskip("lm_eval")

from transformers import AutoModelForCausalLM, AutoTokenizer

from varla.cli.main import app
from varla.lm.harness import evaluate

TASK = """
task: alphabet
dataset_path: json
dataset_kwargs: {{data_files: {data}}}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{start}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
EXAMPLES = [
    {"start": "abcde defgh ghi", "choices": ["jk", "zz"], "answer": 0},
    {"start": "abcde de", "choices": ["fgh", "qqqq", "x"], "answer": 1},
    {"start": "ghijk ", "choices": ["aaaaa", "jklmn"], "answer": 1},
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harness")
    train(settings(write_text(folder / "text"), "train.max_steps=20"), folder / "run")
    (folder / "tasks").mkdir()
    (folder / "data.jsonl").write_text("".join(json.dumps(each) + "\n" for each in EXAMPLES))
    (folder / "tasks" / "alphabet.yaml").write_text(TASK.format(data=folder / "data.jsonl"))
    return folder


@torch.no_grad()
def chosen(folder, example):
    """The choice with the largest likelihood, by one forward each."""
    model = AutoModelForCausalLM.from_pretrained(folder / "run" / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "run" / "model")
    start = tokenizer(example["start"], add_special_tokens=False).input_ids
    found = []
    for choice in example["choices"]:
        ids = torch.tensor([start + tokenizer(choice, add_special_tokens=False).input_ids])
        logs = model(ids).logits[0, :-1].log_softmax(-1)
        found.append(float(logs.gather(1, ids[0, 1:, None])[len(start) - 1 :].sum()))
    return found.index(max(found))


def test_a_local_task(saved, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    wanted = sum(chosen(saved, each) == each["answer"] for each in EXAMPLES) / len(EXAMPLES)
    assert evaluate(saved / "run" / "model", ["alphabet"], include=saved / "tasks")["alphabet"]["acc,none"] == wanted
    command = ["harness", str(saved / "run" / "model"), "--task", "alphabet", "--include", str(saved / "tasks")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert f"{wanted:.4f}" in done.stdout


def test_what_is_wrong_is_named(saved, tmp_path):
    with pytest.raises(ValueError, match="holds no model"):
        evaluate(tmp_path, ["alphabet"])
    with pytest.raises(ValueError, match="the harness knows no task 'alphabetical'"):
        evaluate(saved / "run" / "model", ["alphabetical"], include=saved / "tasks")
    with pytest.raises(ValueError, match="at least one task"):
        evaluate(saved / "run" / "model", [])
