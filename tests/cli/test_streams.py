"""Standard streams that are closed or full. Each needs a process of its own: they belong to the process."""

import os
import subprocess
import sys

import pytest

from varla.cli.streams import results_only

COMMAND = f"{sys.executable} -m varla"


def shell(command):
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_nothing_to_fail_for(closed, tmp_path):
    # The file is opened after the streams are mended: it must not become standard output.
    script = "from varla.cli.streams import prepare; prepare(); f = open(sys.argv[1], 'w'); print('x'); f.write('y')"
    done = shell(f'{sys.executable} -c "import sys; {script}; assert f.fileno() > 2" {tmp_path / "file"} {closed}')
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == "y"


def test_a_full_standard_output_is_named():
    done = shell(f"{COMMAND} --help > /dev/full")
    assert (done.returncode, done.stderr) == (2, "error: standard output: No space left on device\n")


def test_characters_that_the_locale_lacks_are_escaped():
    script = "from varla.cli.streams import prepare, write; prepare(); write('∑')"
    done = shell(f'PYTHONIOENCODING=ascii {sys.executable} -c "{script}"')
    assert (done.returncode, done.stdout) == (0, "\\u2211")


def test_what_compiled_libraries_print_is_no_result(capfd):
    with results_only():
        os.write(1, b"a complaint\n")
        print("a remark")
    print("the result")
    assert capfd.readouterr() == ("the result\n", "a complaint\na remark\n")
