"""varla generate: the session's text as it comes, prompts of any length and kind, states, and what is refused."""

import io
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from tests.cli.cases import refused, varla
from tests.cli.damage import DAMAGES
from tests.session.cases import tiny
from varla import Session
from varla.cli.generate import _prompt, open_text
from varla.cli.main import app
from varla.cli.reading import reading
from varla.cli.streams import write
from varla.lm.folder import load_folder

PROMPT = "Es war ∑ einmal\n"


def generate(*arguments):
    return varla("generate", *arguments, "--device", "cpu")


def text(result):
    assert result.exit_code == 0, result.output
    assert not result.stderr
    return result.stdout


def session(folder, prompt):
    return Session(*load_folder(folder)).feed(prompt)


@pytest.mark.parametrize(
    ("options", "same"),
    [
        (["--temperature", 0], {"temperature": 0}),
        (["--seed", 3], {"seed": 3}),
        (
            ["--seed", 3, "--temperature", 0.5, "--top-k", 20, "--top-p", 0.9],
            {"seed": 3, "temperature": 0.5, "top_k": 20, "top_p": 0.9},
        ),
    ],
    ids=str,
)
def test_prints_what_a_session_generates(lm, options, same):
    wanted = "".join(session(lm, PROMPT).generate_text(30, **same))
    assert text(generate(lm, "--prompt", PROMPT, "--tokens", 30, *options)) == wanted


def test_a_prompt_from_a_file_or_standard_input(lm, tmp_path):
    (tmp_path / "prompt.txt").write_bytes(PROMPT.encode())
    wanted = text(generate(lm, "--prompt", PROMPT, "--seed", 1))
    assert text(generate(lm, "--prompt-file", tmp_path / "prompt.txt", "--seed", 1)) == wanted
    for source in (["-"], ["--prompt-file", "-"]):
        arguments = ["generate", str(lm), *source, "--seed", "1", "--device", "cpu"]
        assert text(CliRunner().invoke(app, arguments, input=PROMPT.encode())) == wanted


def test_goes_on_from_a_state_as_if_it_had_never_stopped(lm, tmp_path):
    state = tmp_path / "state"
    whole = text(generate(lm, "--prompt", PROMPT, "--tokens", 40, "--temperature", 0))
    first = text(generate(lm, "--prompt", PROMPT, "--tokens", 15, "--temperature", 0, "--save-state", state))
    size = state.stat().st_size
    then = ["--state", state, "--temperature", 0]
    assert first + text(generate(lm, *then, "--tokens", 25, "--save-state", state)) == whole
    assert state.stat().st_size == size
    found = Session.load(state, load_folder(lm)[0])
    assert found.position == len(PROMPT.encode()) + 40
    more = text(generate(lm, *then, "--prompt", "x", "--tokens", 5))
    assert more == "".join(Session.load(state, *load_folder(lm)).feed("x").generate_text(5, temperature=0))


def test_no_tokens_reads_the_prompt_alone(lm, tmp_path):
    assert text(generate(lm, "--prompt", PROMPT, "--tokens", 0, "--save-state", tmp_path / "state")) == ""
    found = Session.load(tmp_path / "state", load_folder(lm)[0])
    assert torch.equal(found.logits, session(lm, PROMPT).logits)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["give a prompt", "--prompt-file", "--state"]),
        (["--prompt", "a", "-"], ["not several"]),
        (["--prompt", "a", "--prompt-file", "b"], ["not several"]),
        (["there"], ["unknown argument 'there'"]),
        (["--prompt", ""], ["the prompt is empty"]),
        (["-"], ["the prompt is empty"]),
        (["--prompt", "a", "--temperature", -1], ["temperature must be at least 0"]),
        (["--prompt", "a", "--top-k", 0], ["top_k must be at least 1"]),
        (["--prompt", "a", "--top-p", 2], ["top_p must be at most 1"]),
        (["--prompt", "a", "--tokens", -1], ["--tokens must be at least 0"]),
        (["--prompt", "a", "--seed", -1], ["--seed must be at least 0"]),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(lm, arguments, words):
    assert refused(generate(lm, *arguments), *words)


def test_unknown_devices_are_refused(lm):
    assert refused(varla("generate", lm, "--prompt", "a", "--device", "tpu"), "cpu, cuda")


def test_prompt_files_that_cannot_be_read(lm, tmp_path):
    file = tmp_path / "prompt.txt"
    assert refused(generate(lm, "--prompt-file", file), "prompt.txt", "No such file")
    assert refused(generate(lm, "--prompt-file", tmp_path), "is a folder")
    file.write_bytes(b"")
    assert refused(generate(lm, "--prompt-file", file), "the prompt is empty")
    file.write_bytes(b"a" * 100_000 + b"\xff" + b"b" * 100)
    found = generate(lm, "--prompt-file", file, "--save-state", tmp_path / "state")
    assert refused(found, "prompt.txt is not UTF-8 text", "byte 100000 is 0xff")
    assert not found.stdout
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("name", DAMAGES)
def test_folders_that_hold_no_usable_model(lm, tmp_path, name):
    damage, words = DAMAGES[name]
    folder = shutil.copytree(lm, tmp_path / "lm")
    damage(folder)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert refused(generate(folder, "--prompt", "a", "--save-state", tmp_path / "state"), "lm", *words)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_states_that_do_not_fit(lm, tmp_path):
    state = tmp_path / "state"
    Session(tiny(seed=1)).feed([5]).save(state)
    before = state.read_bytes()
    assert refused(generate(lm, "--state", state, "--save-state", state), "another model", "weights differ")
    assert state.read_bytes() == before
    state.write_bytes(before[:100])
    assert refused(generate(lm, "--state", state), "cut short")
    assert refused(generate(lm, "--state", tmp_path / "none"), "is not there")
    Session(tiny()).save(tmp_path / "empty")
    assert refused(generate(lm, "--state", tmp_path / "empty"), "nothing was fed yet")


def test_a_state_is_written_over_nothing_else(lm, tmp_path):
    (tmp_path / "notes.txt").write_text("dear diary")
    arguments = ["--prompt", "a", "--tokens", 3, "--save-state"]
    assert refused(generate(lm, *arguments, tmp_path / "notes.txt"), "not written over")
    assert (tmp_path / "notes.txt").read_text() == "dear diary"
    assert refused(generate(lm, *arguments, tmp_path / "none" / "state"), "is not a folder")


class Reader(io.StringIO):
    """A standard output that can be written to a few times."""

    def __init__(self, error, times=3, terminal=False):
        super().__init__()
        self.error, self.times, self.terminal = error, times, terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.times -= 1
        if self.times < 0 and self.error:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BrokenPipeError(32, "Broken pipe"), 1, []),
        (OSError(28, "No space left on device"), 2, ["standard output: No space left on device"]),
    ],
)
def test_a_state_is_saved_even_if_nobody_reads_the_text(lm, tmp_path, monkeypatch, capsys, error, code, words):
    state = tmp_path / "state"
    monkeypatch.setattr(sys, "stdout", Reader(error, times=1))
    arguments = ["generate", str(lm), "--prompt", "ab", "--tokens", "50", "--save-state", str(state), "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        app([*arguments, "--seed", "3"])
    told = capsys.readouterr().err
    assert ended.value.code == code
    found = Session.load(state, *load_folder(lm))
    assert 2 < found.position < 52
    assert f"the state after token {found.position} is in {state}" in told
    assert all(word in told for word in words)


def test_ctrl_c_ends_the_text_and_saves_the_state(lm, tmp_path, monkeypatch):
    monkeypatch.setattr("varla.cli.generate.write", lambda text: signal.raise_signal(signal.SIGINT))
    result = generate(lm, "--prompt", "ab", "--tokens", 1000, "--save-state", tmp_path / "state", "--seed", 3)
    assert result.exit_code == 130
    found = Session.load(tmp_path / "state", *load_folder(lm))
    assert result.stderr == f"stopped after token {found.position}; the state is in {tmp_path / 'state'}\n"
    assert found.position < 20


def test_control_characters_do_not_reach_a_terminal(monkeypatch):
    for terminal, shown in ((False, "a\x1b[2J\r\x07\x9b\x7f\n\tb"), (True, "a\u241b[2J\u240d\u2407\ufffd\u2421\n\tb")):
        stream = Reader(None, terminal=terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        write("a\x1b[2J\r\x07\x9b\x7f\n\tb")
        assert stream.getvalue() == shown


def test_closed_standard_input_is_an_error(lm, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="standard input is closed"), _prompt("-", None, None):
        pass


def test_progress_is_shown_where_there_is_a_terminal(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("é" * 1000)
    screen = Reader(None, terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    with open_text(tmp_path / "a.txt") as file, reading("a.txt", file) as texts:
        assert "".join(texts) == "é" * 1000
    assert "reading" in screen.getvalue()
    assert "2.0/2.0 kB" in screen.getvalue()


def test_a_full_disk_is_named_with_the_file(lm, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Session, "save", full)
    result = generate(lm, "--prompt", "a", "--tokens", 2, "--save-state", tmp_path / "state")
    assert refused(result, f"{tmp_path / 'state'}: No space left on device")


def test_as_a_process_text_comes_out_before_the_end(lm):
    command = [sys.executable, "-m", "varla.cli", "generate", str(lm), "-", "--tokens", "100000", "--device", "cpu"]
    command += ["--seed", "0"]  # with one seed in sixty, the first token ends the text
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(PROMPT.encode())
        process.stdin.close()
        assert process.stdout.read(5)
        assert process.poll() is None
        process.kill()


def test_a_file_that_cannot_be_read_any_further_is_named(lm):
    assert refused(generate(lm, "--prompt-file", "/proc/self/mem"), "/proc/self/mem: Input/output error")
