"""The command `r3l-buffer view`, and its page in a real browser."""

import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from msgspec import to_builtins

from buffer.storage.store import Store
from buffer.viewer.evaluation_catalogue import RESULTS, EvaluationCatalogue
from buffer.viewer.view_command import view, view_of
from buffer.viewer.web_server import Viewed
from r3l.records import AttemptKey, GroupPlan, Origin, SlotResult, done
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.run.files import json_lines
from tests.buffer.fakes import refused, thought
from tests.buffer.viewer import stores
from tests.buffer.viewer.chromium import Browser
from tests.learner.evaluation.fakes import attempted

HANDED = (AttemptKey("g0000000009", 7),)
HOSTILE = "</pre></script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def test_a_run_has_its_facts_and_a_bare_store_says_that_they_are_unknown(store):
    assert view_of(store, store.folder.parent).notice.startswith("There is no config.yaml")
    file = store.folder.parent / "config.yaml"
    file.write_text(configuration.dump(RunConfig()))
    found = view_of(store, store.folder.parent)
    assert (found.title, found.notice, dict(found.facts)["algorithm"]) == ("run", "", "r3l")
    file.write_text("learner: {stepz: 1}\n")
    assert "learner.stepz" in view_of(store, store.folder.parent).notice


def test_what_is_wrong_is_one_line_and_exit_code_2(store, capsys):
    place = str(store.folder)
    store.close()  # LMDB opens a file once in a process
    refused(["view", "nowhere"], "no store there", capsys)
    refused(["view", place, "--model", "/nowhere"], "has no tokenizer.json", capsys)
    refused(["view", place, "--port", "70000"], "--port", capsys)
    assert "RUN" in CliRunner().invoke(view, ["--help"]).output


def test_an_evaluations_folder_is_served(evaluation):
    command = [sys.executable, "-m", "buffer.cli", "view", str(evaluation), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith(f"{evaluation}: open http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_a_port_in_use_ends_the_command_and_ctrl_c_ends_a_viewer(store):
    command = [sys.executable, "-m", "buffer.cli", "view", str(store.folder), "--port"]
    first = subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True)
    line = first.stdout.readline()
    port = line.split("127.0.0.1:")[1].split("/")[0]
    second = subprocess.run([*command, port], capture_output=True, text=True, timeout=120)
    assert second.returncode == 2 and second.stderr.count("\n") == 1
    assert second.stderr.startswith(f"r3l-buffer: --port {port}: in use")
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def large(tmp_path):
    """A store of 10,000 groups of 500 tasks."""
    store = Store(tmp_path / "large" / "buffer", map_gib=1)
    stores.write(store, 10_000, tasks=500)
    yield store
    store.close()


def text(browser, selector):
    return browser.value(f"document.querySelector({selector!r})?.innerText ?? ''")


def type_filter(browser, words):
    browser.value(
        f"(() => {{ const box = document.getElementById('filter'); box.value = {words!r};"
        " box.dispatchEvent(new Event('input')); })()"
    )


def test_ten_thousand_groups_in_a_browser(browser, large, serve_store):
    browser.said.clear()
    browser.open(serve_store(large).viewer.url)
    assert "10,000 groups" in text(browser, "header").replace("\xa0", " ")
    assert browser.value("document.querySelectorAll('#list a').length") == 100
    assert browser.value("document.querySelectorAll('main circle').length") == 500
    browser.value("document.getElementById('more').click()")
    browser.wait("document.querySelectorAll('#list a').length === 200")

    type_filter(browser, "step == 1000 and reward > 0.5")  # the last ten groups
    browser.wait("document.getElementById('count').innerText.startsWith('10')")
    browser.value("document.querySelector('#list a').click()")  # a task: its groups over time
    browser.wait("document.getElementById('count').innerText.startsWith('1\xa0group')")
    type_filter(browser, "")
    browser.wait("document.getElementById('count').innerText.startsWith('20')")
    browser.value("document.querySelector('#list a').click()")
    browser.wait("document.querySelectorAll('.pair').length === 2")

    first = "details[data-slot='0'] "
    assert "retry from step 1" in text(browser, first + "summary")
    heads = browser.value(
        f"[...document.querySelectorAll({first + 'h3'!r})].map(one => one.innerText)"
    )
    assert heads == ["Attempt: reward 0.00", "Reflection", "Retry: reward 1.00"]
    assert "reflect-0" in text(browser, first + ".head.next .facts")
    assert text(browser, first + ".shared summary").startswith("1\xa0step before the pivot")
    assert "step 1 spoils" in text(browser, first + ".reflection.next")
    assert browser.value(f"document.querySelectorAll({first + '.strip svg'!r}).length") == 4
    assert "replay_diverged" in text(browser, "details[data-slot='1'] summary")
    browser.value("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}))")
    browser.wait("document.querySelector('main .facts').innerText.startsWith('g0000009500')")
    assert browser.said == []


def test_a_narrow_window_shows_the_list_above_the_group(browser, store, serve_store):
    browser.ask(
        "Emulation.setDeviceMetricsOverride",
        width=420,
        height=800,
        deviceScaleFactor=1,
        mobile=False,
    )
    browser.open(serve_store(store).viewer.url + "#group/g0000000040")
    browser.wait("document.querySelectorAll('.pair').length === 2")
    assert browser.value("document.documentElement.scrollWidth") <= 420
    assert browser.value("document.querySelector('main').clientWidth") > 380
    browser.value("location.hash = ''")
    browser.wait("document.querySelector('main .chart') !== null")
    assert browser.value("document.querySelector('main .chart').viewBox.baseVal.width") < 420
    browser.value("document.getElementById('evaluations').click()")
    browser.wait("document.getElementById('count').innerText.startsWith('0')")
    browser.ask("Emulation.clearDeviceMetricsOverride")


def test_a_group_that_arrives_late_does_not_replace_the_page_chosen_since(
    browser, store, serve_store
):
    browser.open(serve_store(store).viewer.url)
    browser.value(
        "window.asked = window.arrived = 0; window.quick = window.fetch;"
        "window.fetch = async path => {"
        "  if (!path.startsWith('api/group?')) return window.quick(path);"
        "  window.asked++;"
        "  const reply = await window.quick(path);"
        "  await new Promise(done => setTimeout(done, 500));"
        "  setTimeout(() => window.arrived++, 100);"
        "  return reply; }; 0"
    )
    browser.value("location.hash = '#group/g0000000040'")
    browser.wait("window.asked > 0")
    browser.value("location.hash = ''")
    browser.wait("window.arrived > 0")
    browser.wait("document.querySelector('main .chart') !== null")


def test_a_group_asked_for_between_a_choice_and_its_event_does_not_replace_the_page(
    browser, store, serve_store
):
    """The page has the new place before it is told of it; a poll may fall in between."""
    browser.open(serve_store(store).viewer.url + "#group/g0000000040")
    browser.value("location.hash = ''; openGroup(state.group).then(() => window.late = true); 0")
    browser.wait("window.late === true")
    browser.wait("document.querySelector('main .chart') !== null")


def test_a_filter_that_is_wrong_is_said_next_to_it(browser, store, serve_store):
    browser.open(serve_store(store).viewer.url)
    type_filter(browser, "colour == 1")
    browser.wait("!document.getElementById('error').hidden")
    assert "unknown name 'colour'" in text(browser, "#error")


def test_a_run_that_goes_on_is_followed(browser, store, serve_store):
    asked = serve_store(store)
    browser.open(asked.viewer.url)
    browser.value("location.hash = '#group/g0000000040'")
    browser.wait("document.querySelectorAll('.pair').length === 2")
    browser.wait("document.getElementById('live').innerText.includes('follows')")
    with store.write() as txn:
        row = txn.row("g0000000040")
        times = row.times | {"expired": 2000.0}
        txn.put_row(row.with_changes(state="expired", cause="stale", times=times))
    browser.wait("document.querySelector('main').innerText.includes('expired: stale')")


def test_hostile_text_is_shown_as_text(browser, tmp_path, serve_store, monkeypatch):
    task = stores.Task
    monkeypatch.setattr(stores, "Task", lambda name, env, seed: task(name, HOSTILE, seed))
    store = Store(tmp_path / "hostile" / "buffer", map_gib=0.25)
    stores.write(store, 2, tasks=1, observation=HOSTILE)
    (tmp_path / "hostile" / "config.yaml").write_text(configuration.dump(RunConfig()))
    browser.said.clear()
    browser.open(serve_store(store).viewer.url)
    browser.value("location.hash = '#group/g0000000001'")
    browser.wait("document.querySelectorAll('.pair').length === 2")
    assert HOSTILE in text(browser, ".columns > div .observation")
    assert HOSTILE in text(browser, "main .facts")
    assert browser.value("document.querySelectorAll('img, iframe').length") == 0
    assert browser.value("document.scripts.length") == 1
    assert "owned" not in browser.value("document.title") and browser.said == []
    store.close()


def test_tokens_are_shown_with_the_runs_tokenizer_and_marked_if_trained(
    browser, store, serve_store
):
    (store.folder.parent / "config.yaml").write_text(
        configuration.dump(RunConfig(model=str(_policy())))
    )
    browser.open(serve_store(store).viewer.url)
    browser.value("location.hash = '#group/g0000000002'")
    browser.wait("document.querySelectorAll('.pair').length === 2")
    trained = "details[data-slot='0'] .columns > div:not(.head) .tokens span.trained"
    assert browser.value(f"document.querySelectorAll({trained!r}).length") == 16  # 2 × 2 × 4
    title = "document.querySelectorAll('.tokens span.trained')[1].title"
    assert browser.value(title) == "−log p 2.000, trained"
    for dark in (False, True):
        browser.picture(store.folder.parent / "page.png", dark)
        assert (store.folder.parent / "page.png").stat().st_size > 10_000


def test_every_retry_origin_and_reflection_of_a_group_is_shown(browser, tmp_path, serve_store):
    made, origin = stores.Made(), Origin("g0000000009", 7, 1)
    results = [
        done(stores.attempt(0, made)),
        done(stores.attempt(1, made, pivot=1, origin=origin, source="elsewhere")),
        done(stores.attempt(2, made, reward=1.0, of=0, pivot=1, reflection="first")),
        done(stores.attempt(3, made, reward=0.5, of=0, pivot=2, reflection="second")),
        SlotResult(4, "skipped", cause="not_triggered", of=1),
        done(stores.attempt(5, made, of=6, pivot=1)),
        SlotResult(6, "failed", cause="env"),
    ]
    names = {"first": 0, "second": 0, "no reason": 1, "on all": -1}
    thoughts = [thought(name, "hm", of=of) for name, of in names.items()]
    store = Store(tmp_path / "odd" / "buffer", map_gib=0.25)
    stores.write_group(store, results, thoughts, GroupPlan(8, "mine", HANDED))
    browser.said.clear()
    browser.open(serve_store(store).viewer.url)
    browser.value("location.hash = '#group/g0000000001'")
    browser.wait("document.querySelectorAll('.pair').length === 6")
    pairs = browser.value(
        "[...document.querySelectorAll('.pair')].map(one => [one.dataset.slot,"
        " one.dataset.retry ?? '', one.querySelector('summary').innerText].join(' '))"
    )
    assert [" ".join(pair.split()) for pair in pairs] == [
        "-1 Reflection on all",
        "0 2 Attempt 0 reward 0.00 → attempt 2, a retry from step 1: reward 1.00 (+1.00)",
        "0 3 Attempt 0 reward 0.00 → attempt 3, a retry from step 2: reward 0.50 (+0.50)",
        "1 4 Attempt 1 reward 0.00 → attempt 4, a retry: skipped: not_triggered",
        "6 5 Attempt 6 failed: env → attempt 5, a retry from step 1: reward 0.00",
        "7 Attempt 7 not there yet",
    ]
    browser.value("document.querySelectorAll('.pair').forEach(one => one.open = true)")
    browser.wait("document.querySelectorAll('.pair > .columns').length === 6")
    shown = text(browser, "main").replace("\xa0", " ")
    for said in (
        "explored as mine", "handed out: attempt 7 of g0000000009", "open: 7",
        "from step 1 of attempt 7 of g0000000009", "imported from elsewhere", "1 step of g000000",
        "1 step before the pivot, of the retried attempt", "On no attempt", "no reason",
    ):  # fmt: skip
        assert said in shown, said
    assert not [word for word in ("null", "NaN", "undefined", "Invalid") if word in shown]
    assert browser.said == []
    store.close()


def test_an_evaluations_conversations_are_shown(browser, evaluation, show):
    asked = show(Viewed("mine", EvaluationCatalogue(evaluation)))
    browser.said.clear()
    browser.open(asked.viewer.url)
    assert browser.value("document.querySelectorAll('#list a').length") == 2
    assert browser.value("document.querySelectorAll('main circle').length") == 2
    shown = [browser.value("document.body.innerText")]
    browser.value("document.querySelector('#list a').click()")
    browser.wait("document.querySelectorAll('.pair').length === 2")
    first = text(browser, "details[data-slot='0']").replace("\xa0", " ")
    assert "a hall" in first and "walk on" in first and "12 tokens" in first
    browser.wait("document.getElementById('live').innerText.includes('follows the evaluation')")
    shown.append(browser.value("document.body.innerText"))
    browser.value("document.querySelectorAll('#list a')[1].click()")
    browser.wait("document.querySelector('main').innerText.includes('failed: environment_hang')")
    json_lines.append(evaluation / RESULTS, to_builtins(attempted("door/1", 0, reward=1.0)))
    asked.viewer.catalogue._next = 0.0
    browser.wait("!document.querySelector('main').innerText.includes('environment_hang')")
    shown.append(browser.value("document.body.innerText"))
    for page in shown:
        assert not [word for word in ("null", "NaN", "undefined", "Invalid") if word in page]
    assert "trained" not in shown[1] and browser.said == []


def test_an_agents_calls_are_a_tree_of_which_one_conversation_is_shown(
    browser, tmp_path, serve_store, monkeypatch
):
    monkeypatch.setattr(stores, "results", stores.agent_results)
    store = Store(tmp_path / "agents" / "buffer", map_gib=0.25)
    stores.write(store, 2, tasks=1)
    (tmp_path / "agents" / "config.yaml").write_text(
        configuration.dump(RunConfig(model=str(_policy())))
    )
    browser.said.clear()
    browser.open(serve_store(store).viewer.url)
    browser.value("location.hash = '#group/g0000000002'")
    browser.wait("document.querySelectorAll('.calls').length === 2")
    base = "details[data-slot='0'] .columns > :not(.next) > .calls "
    assert "4 calls in 3 conversations" in text(browser, base).replace("\xa0", " ")
    rows = browser.value(
        f"[...document.querySelectorAll({base + 'button'!r})].map(b => b.innerText)"
    )
    assert "→ add" in rows[0] and "not trained" in rows[3].replace("\xa0", " ")
    chosen = f"[...document.querySelectorAll({base + '[aria-current] .number:first-child'!r})]"
    below = f"document.querySelector({base!r}).nextElementSibling.textContent"
    assert browser.value(f"{chosen}.map(one => one.innerText)") == ["0", "1"]
    assert "act 1" in browser.value(below) or "step 1" in browser.value(below)
    browser.value(f"document.querySelectorAll({base + 'button'!r})[2].click()")
    assert browser.value(f"{chosen}.map(one => one.innerText)") == ["0", "2"]
    assert "make it short" in browser.value(below)
    trained = f"document.querySelector({base!r}).nextElementSibling.querySelectorAll('.trained')"
    assert browser.value(f"{trained}.length") == 8
    browser.value(f"document.querySelectorAll({base + 'button'!r})[3].click()")
    assert "it is 2" in browser.value(below) and browser.value(f"{trained}.length") == 0
    browser.ask(
        "Emulation.setDeviceMetricsOverride",
        width=420,
        height=900,
        deviceScaleFactor=1,
        mobile=True,
    )
    assert browser.value("document.documentElement.scrollWidth") <= 420
    browser.value(f"document.querySelector({base!r}).scrollIntoView()")
    browser.picture(tmp_path / "narrow.png")
    browser.ask("Emulation.clearDeviceMetricsOverride")
    assert browser.said == []
    store.close()


def _policy():
    from r3l.models.model_path import model_path

    return model_path("builtin")
