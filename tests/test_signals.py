"""A signal to end is a line and an exit code, whenever it comes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import event as events

import packer
from packer import signals
from packer.cli.printing import one_line_errors
from packer.engines.engine import run_tasks
from packer.progress import progress_bars
from packer.signals import Interrupted
from tests.helpers.chat_templates import EXACT, save_tokenizer

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
    code += "from packer.signals import handle_from_the_start, noted; handle_from_the_start()\n"
    code += "with noted(): signal.raise_signal(signal.SIGINT)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def while_it_compiles(number: int) -> None:
    """Strike inside a dispatcher of Numba, as often as it looks up the types of arguments."""

    @numba.njit
    def twice(values):
        return values * 2

    with events.install_listener("numba:compile", Striking(number)):
        assert twice(np.arange(3)).tolist() == [0, 2, 4]


class Striking(events.Listener):
    def __init__(self, number: int) -> None:
        self.number = number

    def on_start(self, event):
        signal.raise_signal(self.number)
        signal.signal(self.number, signal.SIG_IGN)

    def on_end(self, event):
        pass


def while_a_module_is_imported(number: int) -> None:
    class Strike:
        def find_spec(self, name, path=None, target=None):
            if name == "wave":
                signal.raise_signal(number)

    sys.modules.pop("wave", None)
    sys.meta_path.insert(0, Strike())
    try:
        import wave
    finally:
        del sys.meta_path[0]
    assert wave.open


def in_a_destructor(number: int) -> None:
    class Dying:
        def __del__(self):
            signal.raise_signal(number)

    Dying()


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("place", [while_it_compiles, while_a_module_is_imported, in_a_destructor])
def test_nothing_is_raised_where_a_signal_strikes_but_between_tasks(capfd, number, place):
    handlers, done, tasks = [signal.getsignal(each) for each in ENDS], [], range(8)

    def work(task):
        if task == 3:
            struck.set()
            noted.wait()
        done.append(task)

    def strike_at_the_fourth_task():
        for _ in run_tasks(work, tasks, 1):
            if struck.wait() and not noted.is_set():
                place(number)
                noted.set()

    struck, noted = threading.Event(), threading.Event()
    with pytest.raises(SystemExit) as ended, one_line_errors(debug=False, resumes=True):
        strike_at_the_fourth_task()
    assert done == [0, 1, 2, 3]
    code, word = ENDS[number]
    assert ended.value.code == code
    assert capfd.readouterr().err == f"packer: {word}; the same command resumes where it stopped\n"
    assert [signal.getsignal(each) for each in ENDS] == handlers


@pytest.mark.parametrize("number", ENDS)
def test_a_second_signal_ends_the_process_at_once_by_that_signal(number):
    code = "import os, sys, time\nfrom packer.signals import noted\nwith noted():\n"
    code += f"    os.kill(os.getpid(), {int(number)}); print('goes on', flush=True)\n"
    code += f"    os.kill(os.getpid(), {int(number)}); time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "goes on\n", "")


@pytest.mark.parametrize("number", ENDS)
def test_a_signal_ends_a_command_where_it_reports_progress(number):
    with signals.noted(), progress_bars() as progress:
        progress("lengths", 1, 3)
        signal.raise_signal(number)
        with pytest.raises(Interrupted):
            progress("lengths", 2, 3)
    with signals.noted(), progress_bars() as progress:
        progress("lengths", 3, 3)  # the next command in this process is not interrupted


def test_outside_the_main_thread_signals_are_left_alone():
    before = [signal.getsignal(number) for number in ENDS]

    def work():
        with signals.noted():
            assert [signal.getsignal(number) for number in ENDS] == before

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [signal.getsignal(number) for number in ENDS] == before


def test_a_slow_chat_template_is_interrupted(tmp_path):
    pytest.importorskip("transformers")
    # A template that measures contents is rendered for each chat.
    loops = "{% for i in range(9) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    slow = EXACT["chatml"] + "{% if messages[0].content | length %}" + loops + "{% endif %}"
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    lines = [json.dumps({"messages": chat})] * 3000
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    options = {"tokenizer": save_tokenizer(tmp_path / "ours", template=slow), "on_error": "skip", "max_len": 64}
    threads = threading.active_count()
    strike = threading.Timer(5, os.kill, (os.getpid(), signal.SIGINT))
    strike.start()
    started = time.monotonic()
    with signals.noted(), pytest.raises(Interrupted):
        packer.pack(tmp_path / "chats.jsonl", tmp_path / "out", **options)
    assert time.monotonic() - started < 60  # all of it takes an hour
    strike.join()
    assert threading.active_count() == threads  # one that went on would keep the process from ending


STUCK = """
import hashlib
from packer import signals
with signals.noted():
    print("begun", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in one call of a library
"""


@pytest.mark.parametrize("number", ENDS)
def test_a_second_signal_ends_a_process_whose_main_thread_does_not_come_back(number):
    with subprocess.Popen([sys.executable, "-c", STUCK], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        time.sleep(0.2)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(timeout=20) == -number
