"""A signal to end is a line and an exit code, whenever it comes."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import packer
from packer import signals
from packer.cli.one_line_errors import one_line_errors
from tests.chat_templates import EXACT, save_tokenizer

ROOT = Path(__file__).parent.parent
ENDS = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated")}


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("module", ["packer.cli", "click", "packer.algorithms"])
def test_a_signal_while_the_command_is_being_imported_is_one_line(number, module):
    code = f"""
import os, sys
class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Strike())
sys.argv = ["packer", "--help"]
from packer.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    exit_code, word = ENDS[number]
    assert (done.returncode, done.stdout, done.stderr) == (exit_code, "", f"packer: {word}\n")


def test_an_ignored_signal_stays_ignored():
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    code += "from packer.signals import handle_from_the_start, raising; handle_from_the_start()\n"
    code += "with raising(): signal.raise_signal(signal.SIGINT)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def inside_a_callback(number: int) -> None:
    @ctypes.CFUNCTYPE(None)
    def callback():
        os.kill(os.getpid(), number)
        for _ in range(1000):
            pass

    callback()


def inside_a_destructor(number: int) -> None:
    class Dying:
        def __del__(self):
            os.kill(os.getpid(), number)
            for _ in range(1000):
                pass

    Dying()


def strike_and_work(place, number: int) -> None:
    place(number)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        time.sleep(0.001)


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("place", [inside_a_callback, inside_a_destructor])
def test_a_signal_where_no_exception_can_pass_gets_through(capfd, number, place):
    handlers = [signal.getsignal(each) for each in (*ENDS, signal.SIGALRM)]
    with pytest.raises(SystemExit) as ended, one_line_errors(debug=False, resumes=True):
        strike_and_work(place, number)
    code, word = ENDS[number]
    assert ended.value.code == code
    assert capfd.readouterr().err == f"packer: {word}; the same command resumes where it stopped\n"
    assert [signal.getsignal(each) for each in (*ENDS, signal.SIGALRM)] == handlers


def test_it_is_raised_again_until_it_gets_through():
    """Callback after callback, as LLVM calls them while it compiles."""
    called = 0

    @ctypes.CFUNCTYPE(None)
    def callback():
        nonlocal called
        called += 1
        for _ in range(100_000):
            pass

    def compile_and_work(number: int) -> None:
        inside_a_callback(number)
        for _ in range(20):
            callback()
        time.sleep(10)

    with pytest.raises(signals.Signalled), signals.raising():
        compile_and_work(signal.SIGTERM)
    assert called


def test_other_exceptions_that_cannot_pass_are_shown_as_ever(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    @ctypes.CFUNCTYPE(None)
    def callback():
        raise RuntimeError("of somebody else")

    with signals.raising():
        callback()
    assert [str(each.exc_value) for each in seen] == ["of somebody else"]


def test_outside_the_main_thread_signals_are_left_alone():
    before = [signal.getsignal(number) for number in ENDS]

    def work():
        with signals.raising():
            assert [signal.getsignal(number) for number in ENDS] == before

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [signal.getsignal(number) for number in ENDS] == before


def test_a_slow_chat_template_is_interrupted(tmp_path):
    pytest.importorskip("transformers")
    slow = EXACT["chatml"] + "{% for i in range(9) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    lines = [json.dumps({"messages": chat})] * 3000
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    options = {"tokenizer": save_tokenizer(tmp_path / "ours", template=slow), "on_error": "skip", "max_len": 64}
    threads = threading.active_count()
    strike = threading.Timer(5, os.kill, (os.getpid(), signal.SIGINT))
    strike.start()
    started = time.monotonic()
    with signals.raising(), pytest.raises(signals.Signalled):
        packer.pack(tmp_path / "chats.jsonl", tmp_path / "out", **options)
    assert time.monotonic() - started < 60  # all of it takes an hour
    strike.join()
    assert threading.active_count() == threads  # one that went on would keep the process from ending
