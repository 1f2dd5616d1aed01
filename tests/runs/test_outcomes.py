"""Ctrl-C and SIGTERM as a flag."""

import signal
import threading

import pytest

from varla.runs.outcomes import Stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_sets_a_flag_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    with Stop() as stop:
        assert not stop.wanted
        signal.raise_signal(number)
        assert stop.wanted
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_interrupts():
    with Stop():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_outside_the_main_thread_it_catches_nothing():
    seen = []

    def work():
        with Stop() as stop:
            seen.append(stop.wanted)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
