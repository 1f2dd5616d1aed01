"""A small sample of `make kill`: killed writers resume to what an uninterrupted one leaves."""

import pytest

from tests import kill


@pytest.mark.parametrize(("name", "tries"), [("train", 6), ("train-lm", 4), ("session", 6)])
def test_killed_it_resumes_to_the_same_result(name, tries, monkeypatch):
    monkeypatch.setenv("VARLA_COMMIT", "a test")
    assert kill.kill(name, tries, seed=1)["kills"] >= tries


def test_a_writer_that_is_not_safe_is_found(monkeypatch, tmp_path):
    """A file that is written in place, line by line."""

    def write(folder):
        folder.mkdir(exist_ok=True)
        with (folder / "file").open("w") as file:
            for i in range(100):
                file.write(f"{i}\n")
                (folder / "mark").touch()
                (folder / "mark").unlink()  # a moment for a kill
                file.flush()

    def check(folder):
        if (folder / "file").exists():
            assert (folder / "file").read_text().endswith("99\n")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # what is found is left there
    monkeypatch.setitem(kill.WRITERS, "unsafe", kill.Writer(write, lambda folder: (folder / "file").read_text(), check))
    with pytest.raises(AssertionError):
        kill.kill("unsafe", 4)
