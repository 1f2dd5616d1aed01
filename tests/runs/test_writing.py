"""Files and folders are never half-written, and errors name them."""

import errno
from unittest.mock import Mock

import pytest

from varla.runs.writing import move_into_place, naming, write_aside, written_aside


def test_a_write_that_fails_leaves_the_old_file_and_is_named(tmp_path, monkeypatch):
    file = tmp_path / "record.json"
    write_aside(file, "old")
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match=r"No space left on device: '.*/record.json'"):
        write_aside(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_file_that_cannot_be_opened_is_named_as_the_user_knows_it(tmp_path):
    with pytest.raises(OSError, match=r"'.*/gone/record.json'"):
        write_aside(tmp_path / "gone" / "record.json", "text")


def test_a_folder_that_is_moved_into_place_replaces_the_one_before(tmp_path):
    for name, content in (("aside", "new"), ("target", "old")):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "file").write_text(content)
    move_into_place(tmp_path / "aside", tmp_path / "target")
    assert (tmp_path / "target" / "inner" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_folder_that_is_written_aside_is_whole_or_absent(tmp_path):
    with pytest.raises(FileNotFoundError), written_aside(tmp_path / "target") as aside:
        aside.joinpath("file").write_text((tmp_path / "none").read_text())
    assert not list(tmp_path.iterdir())
    with written_aside(tmp_path / "target") as aside:
        (aside / "file").write_text("whole")
        assert not (tmp_path / "target").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (tmp_path / "target" / "file").read_text() == "whole"


@pytest.mark.parametrize(
    ("error", "filename"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "a/file"),
        (OSError(errno.ENOSPC, "No space left on device", ".aside/file"), "a/file"),
        (OSError(errno.ENOENT, "No such file", "other"), "other"),
        (OSError("no error of the system"), None),
    ],
    ids=["names none", "names it aside", "names another", "no number"],
)
def test_an_error_names_the_file(error, filename):
    with pytest.raises(OSError) as caught, naming("a/file"):  # noqa: PT011
        raise error
    assert caught.value.filename == filename
