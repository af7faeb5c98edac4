"""When an idle worker captures: in the pauses of vLLM's own loops, and never while something waits."""

import queue
import sys
import threading
import types

import pytest

from scaffold.runtime.vllm import idle


class Manager:
    def __init__(self, graphs):
        self.left, self.captured, self.during = graphs, 0, lambda: None

    @property
    def wants_graphs(self):
        return self.left > 0

    def capture_when_idle(self, most=None):
        assert most == 1
        self.left -= 1
        self.captured += 1
        self.during()
        return 1


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(idle, "QUIET", 0.02)
    monkeypatch.setattr(idle._Pauses, "seen", False)
    monkeypatch.setattr(idle._Pauses, "rests", False)
    idle._managers.clear()
    yield
    idle._managers.clear()


def engine(monkeypatch, manager):
    """vLLM's loop as far as it matters here, with its class where the hook looks for it."""

    class EngineCoreProc:
        def __init__(self):
            self.input_queue = queue.Queue()
            self.works = False
            self.got = []

        def has_work(self):
            return self.works

        def _process_input_queue(self):
            while not self.has_work():
                self.got.append(self.input_queue.get())
                self.works = True

    module = types.ModuleType("vllm.v1.engine.core")
    module.EngineCoreProc = EngineCoreProc
    monkeypatch.setitem(sys.modules, module.__name__, module)
    idle.watch(manager)
    idle.watch(manager)  # once is enough
    return EngineCoreProc()


def test_a_pause_of_the_engine_is_used_until_a_request_comes(monkeypatch):
    manager = Manager(3)
    core = engine(monkeypatch, manager)
    threading.Timer(1.0, core.input_queue.put, ["request"]).start()
    core._process_input_queue()
    assert (manager.captured, core.got) == (3, ["request"])
    assert idle.is_seen()


def test_nothing_is_captured_while_a_request_waits(monkeypatch):
    manager = Manager(3)
    core = engine(monkeypatch, manager)
    core.input_queue.put("request")
    core._process_input_queue()
    core._process_input_queue()  # now it has work
    assert (manager.captured, core.got) == (0, ["request"])


def test_no_two_requests_in_a_row_wait_for_a_capture(monkeypatch):
    manager = Manager(9)
    core = engine(monkeypatch, manager)
    manager.during = lambda: core.input_queue.put("came during a capture")
    core._process_input_queue()
    assert manager.captured == 1
    core.works = False
    threading.Timer(0.2, core.input_queue.put, ["came in the pause that was left alone"]).start()
    core._process_input_queue()
    assert manager.captured == 1
    core.works = False
    core._process_input_queue()
    assert manager.captured == 2


def test_a_fault_stops_the_captures_and_not_the_loop(monkeypatch, caplog):
    manager = Manager(9)
    core = engine(monkeypatch, manager)

    def fails():
        raise RuntimeError("no")

    manager.during = fails
    threading.Timer(0.3, core.input_queue.put, ["request"]).start()
    core._process_input_queue()
    assert (manager.captured, core.got) == (1, ["request"])
    assert "no further encoder graphs are captured while idle: RuntimeError: no" in caplog.text


def test_a_worker_process_captures_before_its_next_message(monkeypatch):
    class Ring:
        def __init__(self):
            self.flags = [0, 0, 0]

        def get_metadata(self, index):
            import contextlib

            return contextlib.nullcontext(self.flags)

    class MessageQueue:
        _is_local_reader = True
        current_idx, local_reader_rank = 0, 1

        def __init__(self):
            self.buffer = Ring()

        def dequeue(self, timeout=None, indefinite=False):
            while not self.buffer.flags[0]:
                pass
            return "message", timeout, indefinite

    module = types.ModuleType("shm_broadcast")
    module.MessageQueue = MessageQueue
    monkeypatch.setitem(sys.modules, "vllm.distributed.device_communicators.shm_broadcast", module)
    manager = Manager(2)
    idle.watch(manager)
    messages = MessageQueue()
    threading.Timer(0.5, messages.buffer.flags.__setitem__, [0, 1]).start()
    assert messages.dequeue(indefinite=True) == ("message", None, True)
    assert manager.captured == 2
    manager.left = 2
    assert messages.dequeue(indefinite=True) == ("message", None, True)  # the next one is there already
    messages.dequeue(timeout=3.0)
    assert manager.captured == 2
