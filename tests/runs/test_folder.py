"""A run's folder: what it holds and who may use it."""

import errno
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from varla.runs.folder import RunError, RunFolder
from varla.training import Run


def test_settings_and_record_come_back(tmp_path):
    run = RunFolder(tmp_path)
    run.check_unused()
    assert run.record() == {}
    run.claim({"b": 1, "a": {"rate": 1e-3}}, texts=["x"])
    run.write_record({"status": "finished"})
    assert run.read_config() == {"b": 1, "a": {"rate": 1e-3}}
    assert run.begun() == {"settings": {"b": 1, "a": {"rate": 1e-3}}, "texts": ["x"]}
    assert run.record() == {"status": "finished"}
    with pytest.raises(RunError, match="already holds a run: resume it, or choose another folder"):
        run.check_unused()


def test_what_is_missing_damaged_or_different_is_named(tmp_path):
    run = RunFolder(tmp_path)
    with pytest.raises(RunError, match=r"holds no run: there is no config\.yaml in it"):
        run.read_config()
    for content in (b"{", b"[1]", b"\xff", b"[" * 100_000):
        run.record_file.write_bytes(content)
        with pytest.raises(RunError, match=r"record.json is damaged"):
            run.record()
        run.begun_file.write_bytes(content)
        with pytest.raises(RunError, match=r"begun.json is damaged"):
            run.begun()
    for key, value in (("status", 10**400), ("status", ["finished"]), ("message", 3)):
        run.record_file.write_text(json.dumps({key: value}))
        with pytest.raises(RunError, match=rf"record.json is damaged: `{key}` must be text, got "):
            run.record()
    run.begun_file.write_text('{"settings": 3}')
    with pytest.raises(RunError, match=r"begun.json is damaged: it holds no settings"):
        run.begun()
    run.begun_file.unlink()
    run.check_same({"a": 1, "b": 2}, {"a": 1, "b": 2})
    with pytest.raises(RunError, match=r"settings of b \(2, now 3\), c \(not set, now 4\): it cannot be"):
        run.check_same({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4})


def test_the_lock_keeps_others_out_and_removes_leftovers(tmp_path):
    run = RunFolder(tmp_path)
    left = tmp_path / ".record.json.123"
    left.write_text("half")
    with run.lock():
        assert not left.exists()
        with pytest.raises(RunError, match="is being trained by another process"), run.lock():
            pytest.fail("two processes hold the folder")
        with run.lock(take=False):  # another process of the same run
            pass
    with run.lock():
        pass


def test_settings_that_were_edited_are_named(tmp_path):
    run = RunFolder(tmp_path)
    began = {"seed": 1, "train": {"lr": 1e-3, "sizes": (1, 2), "max": float("inf")}, "model": {}}
    run.claim(began)
    run.check_same(began, began)
    edited = {**began, "train": {**began["train"], "lr": 0.5}}
    with pytest.raises(RunError, match=r"config.yaml was edited after .* settings of train.lr \(0.001, now 0.5\)\. "):
        run.check_same(edited, edited)
    run.begun_file.unlink()  # made by an earlier version
    run.check_same(edited, edited)


def test_the_lock_makes_the_folder_and_leaves_none_if_no_run_begins(tmp_path):
    run = RunFolder(tmp_path / "new")
    with pytest.raises(KeyError), run.lock():
        raise KeyError
    assert not run.folder.exists()
    with run.lock():
        (run.folder / "tokens").mkdir()
    assert [path.name for path in run.folder.iterdir()] == ["tokens"]
    with run.lock():
        run.claim({})
    assert sorted(path.name for path in run.folder.iterdir()) == [".lock", "begun.json", "config.yaml", "tokens"]
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    refused = {
        "file": "is a file: choose another folder",
        "file/run": "cannot be written to: Not a",
        "link": "is a file",
    }
    for path, message in refused.items():
        with pytest.raises(RunError, match=message), RunFolder(tmp_path / path).lock():
            pytest.fail("there is no folder to lock")


def test_however_many_start_at_once_one_holds_the_folder(tmp_path):
    """Also while others give it up, which removes the folder and the lock."""
    run = RunFolder(tmp_path / "run")
    inside, held, begun = [], [], threading.Barrier(8)

    def start():
        begun.wait()
        for _ in range(50):
            try:
                with run.lock():
                    inside.append(1)
                    held.append(len(inside))
                    inside.pop()
            except RunError as error:
                assert "is being trained by another process" in str(error)  # noqa: PT017

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(start) for _ in range(8)]:
            future.result()
    assert set(held) == {1}
    assert not list(run.folder.glob("*")), "no lock is left"


def test_a_system_that_cannot_lock_is_not_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    with pytest.raises(RunError, match="cannot be locked: No locks available"), RunFolder(tmp_path).lock():
        pytest.fail("it is not locked")


@pytest.mark.parametrize("text", ['{"status": "\\ud800"}', '{"final": {"eval": ' + "9" * 400 + "}}"])
def test_a_record_that_cannot_be_printed_is_damaged(tmp_path, text):
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(RunError, match=r"record\.json is damaged"):
        Run(tmp_path).record()
