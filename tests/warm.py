"""Python programs in processes that are forked from one that has imported PyTorch: each would import it for seconds.

The fixture `warm` starts them. `python()` is the path of a program to be used like Python's own: its process has the
arguments, the folder, the environment and the open files that it is given, passes signals on, and ends as the other
does. (A test that stops or kills a process needs the process itself: Python's own.)
"""

import atexit
import fcntl
import json
import os
import runpy
import shlex
import socket
import sys
import tempfile
import threading
import traceback
from functools import cache
from multiprocessing.connection import wait
from multiprocessing.process import parent_process
from pathlib import Path

import pytest

from tests.ranks import CONTEXT

# It imports next to nothing: this is what a start costs. Files have the numbers that they have here.
CLIENT = """
import json, os, signal, socket, sys
files = []
for number in map(int, os.listdir("/dev/fd")):
    try:
        files += [number] if os.get_inheritable(number) else []
    except OSError:
        pass  # the list itself
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
socket.send_fds(server, [b"!"], files)
order = {"files": files, "arguments": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
server.sendall(json.dumps(order).encode() + b"\\n")
said = server.makefile()
process = int(said.readline())
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, lambda number, frame: os.kill(process, number))
code = os.waitstatus_to_exitcode(int(said.readline()))
if code < 0:
    if -code in (signal.SIGINT, signal.SIGTERM):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@pytest.fixture
def warm(monkeypatch):
    """What starts Python by `sys.executable` starts the program."""
    monkeypatch.setattr(sys, "executable", python())


@cache
def python() -> str:
    """The path of the program. What it needs ends with this process."""
    folder = tempfile.TemporaryDirectory()
    place = Path(folder.name)
    (place / "client.py").write_text(CLIENT)
    program = place / "python"
    command = [sys.executable, "-I", "-S", str(place / "client.py"), str(place / "socket")]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place / "socket"))
    listener.listen()
    server = CONTEXT.Process(target=_serve, args=(listener,))
    server.start()
    listener.close()
    atexit.register(folder.cleanup)
    atexit.register(server.kill)
    return str(program)


def _serve(listener):
    parent = parent_process()
    assert parent is not None
    while parent.sentinel not in wait([listener, parent.sentinel]):
        asking, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _run_for(asking)
        asking.close()
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _run_for(asking):
    """Run a program and tell the one who asked how it ended."""
    _, files, _, _ = socket.recv_fds(asking, 1, 250)
    with asking.makefile() as lines:
        order = json.loads(lines.readline())
    process = os.fork()
    if process == 0:
        asking.close()
        _become(order, files)
    for each in files:
        os.close(each)
    asking.sendall(b"%d\n" % process)
    _, status = os.waitpid(process, 0)
    asking.sendall(b"%d\n" % status)
    os._exit(0)


def _become(order, files):
    """Be the program, to its end."""
    wanted = order["files"]
    apart = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 1 + max(wanted)) for each in files]
    for each in files:
        os.close(each)
    for here, there in zip(apart, wanted, strict=True):
        os.dup2(here, there)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    code = 1
    try:
        _run([each for each in order["arguments"] if each != "-u"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # as Python ends: threads first, then what asked to be called
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(arguments):
    """What Python does with its command line."""
    how = arguments[0]
    sys.argv = arguments[1:] if how in ("-m", "-c") else arguments
    sys.path.insert(0, os.getcwd() if how in ("-m", "-c") else str(Path(how).parent))
    if how == "-m":
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv, code = ["-c", *sys.argv[1:]], sys.argv[0]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(how, run_name="__main__")
