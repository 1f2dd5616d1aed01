"""A run's folder: what it holds, who may use it, and files that are never half-written."""

import pytest

from varla.runs.folder import RunError, RunFolder, write_aside


def test_settings_and_record_come_back(tmp_path):
    run = RunFolder(tmp_path)
    run.check_unused()
    assert run.record() == {}
    run.write_config({"b": 1, "a": {"rate": 1e-3}})
    run.write_record({"status": "finished"})
    assert run.read_config() == {"b": 1, "a": {"rate": 1e-3}}
    assert run.record() == {"status": "finished"}
    with pytest.raises(RunError, match="already holds a run: resume it, or choose another folder"):
        run.check_unused()


def test_what_is_missing_damaged_or_different_is_named(tmp_path):
    run = RunFolder(tmp_path)
    with pytest.raises(RunError, match=r"holds no run: there is no config\.yaml in it"):
        run.read_config()
    run.record_file.write_text("{")
    with pytest.raises(RunError, match=r"record.json is damaged"):
        run.record()
    run.check_same({"a": 1, "b": 2}, {"a": 1, "b": 2})
    with pytest.raises(RunError, match="was made with other settings of b, c: it cannot be resumed"):
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


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "record.json"
    write_aside(file, "old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        write_aside(file, "new")
    assert file.read_text() == "old"
