"""lm-evaluation-harness on a saved folder, with a task of our own: the numbers are those of the plain forward."""

import json
import math
import shutil

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
ROLLING = """
task: rolling
dataset_path: json
dataset_kwargs: {{data_files: {data}}}
test_split: train
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{start}}}}"
metric_list: [{{metric: bits_per_byte}}, {{metric: byte_perplexity}}]
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
    for name, task in (("alphabet", TASK), ("rolling", ROLLING)):
        (folder / "tasks" / f"{name}.yaml").write_text(task.format(data=folder / "data.jsonl"))
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


@torch.no_grad()
def rolled(folder, context):
    """Bits per byte of all texts, in windows of `context` tokens after the end-of-text or the token before them."""
    model = AutoModelForCausalLM.from_pretrained(folder / "run" / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "run" / "model")
    nats, size = 0.0, 0
    for example in EXAMPLES:
        ids = [tokenizer.eos_token_id, *tokenizer(example["start"], add_special_tokens=False).input_ids]
        begin = 0
        while begin < len(ids) - 1:
            end = min(begin + context, len(ids) - 1)
            begins = begin if begin == 0 else end - context  # the last window is as long as the others
            logs = model(torch.tensor([ids[begins:end]])).logits[0].log_softmax(-1)
            nats -= float(logs[begin - begins :].gather(1, torch.tensor(ids[begin + 1 : end + 1])[:, None]).sum())
            begin = end
        size += len(example["start"].encode())
    return nats / math.log(2) / size


@pytest.mark.parametrize("context", [4, 7, None])
def test_texts_are_scored_once_from_the_end_of_text_on(saved, monkeypatch, context):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    found = evaluate(saved / "run" / "model", ["rolling"], include=saved / "tasks", context=context)["rolling"]
    assert found["bits_per_byte,none"] == pytest.approx(rolled(saved, context or 2048), rel=1e-5)


def test_a_tokenizer_without_a_token_to_begin_with_is_refused(saved, tmp_path):
    shutil.copytree(saved / "run" / "model", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="neither a bos_token nor an eos_token"):
        evaluate(tmp_path / "model", ["rolling"], include=saved / "tasks")


def test_a_device_that_is_not_there_is_named(saved, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device, words in (("cuda", "finds no CUDA device"), ("tpu", "must be one of cpu, cuda")):
        command = ["harness", str(saved / "run" / "model"), "--task", "alphabet", "--device", device]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2
        assert words in done.output


def test_what_is_wrong_is_named(saved, tmp_path):
    with pytest.raises(ValueError, match="holds no model"):
        evaluate(tmp_path, ["alphabet"], include=saved / "tasks")
    with pytest.raises(ValueError, match="the harness knows no task 'alphabetical'"):
        evaluate(saved / "run" / "model", ["alphabetical"], include=saved / "tasks")
    with pytest.raises(ValueError, match="at least one task"):
        evaluate(saved / "run" / "model", [])
    with pytest.raises(ValueError, match="context must be at least 1"):
        evaluate(saved / "run" / "model", ["alphabet"], include=saved / "tasks", context=0)


def test_data_that_cannot_be_read_is_an_error_of_one_line(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    (tmp_path / "data.jsonl").write_text('{"start": \n')
    (tmp_path / "alphabet.yaml").write_text(TASK.format(data=tmp_path / "data.jsonl"))
    with pytest.raises(ValueError, match="the data of the tasks cannot be loaded: "):
        evaluate(saved / "run" / "model", ["alphabet"], include=tmp_path)


# What a task does to run code, and words of the error.
CODE = {
    "function": ("{task}process_docs: !function theirs.run\n", "'!function'"),
    "class": ("task: alphabet\nclass: !function theirs.Task\n", "!function"),
    "object": ("{task}doc_to_text: !!python/object/apply:os.getcwd []\n", "python/object/apply"),
    "included": ("include: ../other\n{task}", "other"),
    "metric": ("{metric}", "metric .*theirs.py' is not one of the harness's own"),
    "downloaded metric": ("{downloaded}", "metric 'acc' is not one of the harness's own"),
    "template": ("{template}", "template .*access to attribute '__class__'"),
    "dataset": ("{dataset}", "a task whose dataset is loaded by a Python script, which is never run: .*theirs.py"),
    "prompt": ("{task}use_prompt: prompts.yaml:one\n", "use_prompt"),
    "deep": ("[" * 2000, "cannot be read"),
}


@pytest.mark.parametrize("kind", CODE)
def test_tasks_run_no_code(saved, tmp_path, monkeypatch, kind):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    (tmp_path / "tasks").mkdir()
    script = tmp_path / "tasks" / "theirs.py"
    script.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'mark')!r}).write_text('ran')\n")
    (tmp_path / "other").write_text("process_docs: !function theirs.run\n")
    task = TASK.format(data=saved / "data.jsonl")
    texts = {
        "task": task,
        "metric": task.replace("metric: acc", f"metric: {script}"),
        "downloaded": task.replace("metric: acc", "metric: acc, hf_evaluate: true"),
        "dataset": task.replace("dataset_path: json", f"dataset_path: {script}"),
        "template": task.replace("{{start}}", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    }
    text, words = CODE[kind]
    (tmp_path / "tasks" / "alphabet.yaml").write_text(text.format(**texts))
    with pytest.raises(ValueError, match=words):
        evaluate(saved / "run" / "model", ["alphabet"], include=tmp_path / "tasks")
    assert not (tmp_path / "mark").exists()
