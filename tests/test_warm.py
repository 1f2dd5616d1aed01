"""Programs that are forked: they get and give what Python's own would."""

import signal
import subprocess

from tests.warm import python


def run(*arguments, **options):
    done = subprocess.run([python(), *arguments], capture_output=True, text=True, check=False, **options)
    return done.returncode, done.stdout, done.stderr


def test_a_program_has_its_arguments_folder_and_environment(tmp_path):
    script = "import os, sys; print(sys.argv, os.getcwd(), dict(os.environ), input(), 'torch' in sys.modules)"
    environment = {"A": "b"}
    found = run("-u", "-c", script, "x", cwd=tmp_path, env=environment, input="y\n")
    assert found[0] == 0, found
    assert found[1].startswith(f"['-c', 'x'] {tmp_path} {{'A': 'b'")
    assert found[1].endswith("y True\n")
    (tmp_path / "file.py").write_text("import sys, torch; print(sys.argv[1:], __name__)")
    assert run(str(tmp_path / "file.py"), "-m", "z") == (0, "['-m', 'z'] __main__\n", "")
    assert run("-m", "varla", "--version")[0] == 0


def test_its_end_is_that_of_the_program():
    assert run("-c", "import atexit, sys; atexit.register(print, 'later'); sys.exit('bad')") == (1, "later\n", "bad\n")
    assert run("-c", "import sys; sys.exit(3)")[0] == 3
    code, _, said = run("-c", "1 / 0")
    assert code == 1
    assert said.endswith("ZeroDivisionError: division by zero\n")
    assert run("-c", "import os; os.kill(os.getpid(), 9)")[0] == -signal.SIGKILL


def test_signals_reach_it():
    script = "import signal, sys; signal.signal(15, lambda *_: sys.exit(4)); print(1, flush=True); signal.pause()"
    with subprocess.Popen([python(), "-c", script], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 4
