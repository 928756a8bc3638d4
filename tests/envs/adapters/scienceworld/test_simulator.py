"""The memory before upstream's simulator, with a simulator of a few lines."""

from types import SimpleNamespace

import pytest

from envs.adapters.scienceworld import simulator
from envs.adapters.scienceworld.simulator import Simulator, Turn
from r3l.errors import EnvironmentFailed

START = ("count", "7", "easy")


class Server:
    """Counts commands; `wrong` ends the task, `more` adds to the score."""

    def __init__(self):
        self.asked = []

    def load(self, task, variation, simplification, gold):
        self.asked.append(f"load {task} {variation} {simplification} {gold}")
        self.said, self.score = 0, 0.0

    def step(self, command):
        self.asked.append(command)
        self.said += 1
        self.score = -1.0 if command == "wrong" else self.score + 0.25 * (command == "more")
        return f"reply {self.said}"

    def getScore(self):
        return self.score

    def getCompleted(self):
        return self.score == 1.0

    def getGoldActionSequence(self):
        return ["more", "more", "more", "more", "wait1"]

    def freeActionTaskDesc(self):
        return "Count."

    def freeActionLook(self):
        return "This is a room."


@pytest.fixture
def counting(monkeypatch):
    """A simulator that plays on `Server`."""

    server, root = Server(), SimpleNamespace()
    root.scienceworld = SimpleNamespace(runtime=SimpleNamespace(pythonapi=root))
    root.PythonInterface = lambda: server

    class Machine:
        lost = ""

        def __init__(self):
            self.detached = []
            self.gateway = SimpleNamespace(jvm=root, detach=self.detached.append)

        def call(self, call):
            return call()

    monkeypatch.setattr(simulator, "_known", {})
    monkeypatch.setattr(simulator, "_gold", {})
    made = Simulator("a.jar", 100, 60)
    made.jvm, made.server = Machine(), server
    return made


def test_a_known_history_asks_nothing(counting):
    assert counting.turn((*START, "more")) == Turn("reply 1", 0.25, False)
    asked = list(counting.server.asked)
    assert asked == ["load count 7 easy False", "more"]
    assert counting.turn(START) == Turn("Count.\nThis is a room.", 0.0, False)
    assert counting.turn((*START, "more")).score == 0.25
    assert counting.server.asked == asked


def test_a_history_is_continued_or_played_from_its_beginning(counting):
    counting.turn((*START, "more"))
    counting.turn((*START, "more", "less"))
    assert counting.server.asked == ["load count 7 easy False", "more", "less"]
    counting.turn((*START, "more", "more"))
    assert counting.server.asked[3:] == ["load count 7 easy False", "more", "more"]
    assert counting.turns((*START, "more", "more")) == [
        ("more", Turn("reply 1", 0.25, False)),
        ("more", Turn("reply 2", 0.5, False)),
    ]


def test_a_negative_score_ends_the_task(counting):
    assert counting.turn((*START, "wrong")) == Turn("reply 1", -1.0, True)


def test_a_replay_with_another_reply_fails_with_a_cause(counting):
    counting.expect((*START, "more"), Turn("another reply", 0.25, False))
    with pytest.raises(EnvironmentFailed, match="different reply to command 1") as failed:
        counting.turn((*START, "more", "more"))
    assert failed.value.cause == "replay_diverged"


def test_the_gold_path_ends_where_the_task_ends(counting):
    assert counting.gold(START) == ("more",) * 4
    asked = len(counting.server.asked)
    assert counting.gold(START) == ("more",) * 4 and len(counting.server.asked) == asked


def test_the_memory_is_bounded(counting, monkeypatch):
    monkeypatch.setattr(simulator, "MOST", 3)
    for number in range(10):
        counting.turn((*START, f"command {number}"))
        assert len(simulator._known) <= 3
    counting.turn((*START, "more"))
    assert counting.turns((*START, "more", "more"))[-1] == ("more", Turn("reply 2", 0.5, False))


def test_java_lets_go_of_a_task_when_another_is_loaded(counting):
    first = counting.server
    counting.turn(START)
    counting.turn(("count", "8", "easy"))
    assert counting.jvm.detached == [first, first]
