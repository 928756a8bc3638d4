"""A run as one HTML file."""

import random
import shutil

import pytest
from click.testing import CliRunner

from buffer.storage.store import Store
from launch.cli import main
from learner.evaluation.evaluator import Evaluation, keep_evaluation
from learner.evaluation.metrics import report
from r3l.run.config import RunConfig
from tests.buffer.viewer import stores
from tests.buffer.viewer.chromium import Browser, needed
from tests.launch.fakes import refused
from tests.launch.inspection.pages.html import read
from tests.launch.inspection.pages.test_run_data import played
from tests.r3l.files.made import flips


def written(run, *options):
    result = CliRunner().invoke(main, ["report", str(run), *options])
    assert result.exit_code == 0, result.output
    return result.output


def evaluated(run):
    for version, attempts in ((0, played(0.0, 1.0)), (4, played(1.0, 1.0))):
        keep_evaluation(run, RunConfig(), Evaluation(version, attempts, report(attempts)))


def test_a_report_is_one_file_in_the_runs_folder(ended):
    assert "report.html: " in written(ended)
    shown = read((ended / "report.html").read_bytes())
    assert "What was not measured" in shown.text and "no process is running" in shown.text
    assert not list(ended.glob(".building-*"))


def test_what_cannot_be_written_is_one_line(ended, tmp_path):
    assert "has no config.yaml" in refused("report", tmp_path / "other")
    assert "its folder does not exist" in refused("report", ended, "--out", tmp_path / "no" / "a")
    assert "is a folder; name a file" in refused("report", ended, "--out", tmp_path)


def test_a_run_with_damaged_files_has_a_page_that_names_them(ended):
    evaluated(ended)
    files = sorted(path for path in ended.rglob("*") if path.is_file())
    chance = random.Random(0)
    for file in files:
        whole = file.read_bytes()
        few = list(flips(whole, 2)) if file.name != "lock.mdb" and whole else []
        for damaged in (b"", b"\xff\x00{", whole[: len(whole) // 2], chance.randbytes(50), *few):
            file.write_bytes(damaged)
            out = written(ended, "--out", str(ended.parent / "page.html"))
            read((ended.parent / "page.html").read_bytes())
            if file.name == "config.yaml" and not damaged:
                assert "not readable, as the page says: settings: " in out
        file.write_bytes(whole)
    shutil.rmtree(ended / "buffer")
    (ended / "buffer").write_text("a file")
    written(ended)


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_a_run_without_settings_is_refused_in_a_line_and_has_a_page_all_the_same(ended, command):
    (ended / "config.yaml").rename(ended / "config.before-step-000002.yaml")
    assert "has lost its config.yaml; restore it from a copy" in refused(command, ended)
    assert "not readable, as the page says: settings: run " in written(ended)
    shown = read((ended / "report.html").read_bytes())
    assert "has lost its config.yaml" in shown.text and "groups in the store" in shown.text


def test_a_run_that_lost_its_store_has_a_page_that_says_so(ended):
    (ended / "buffer" / "data.mdb").unlink()
    out = written(ended)
    assert "not readable, as the page says: the store: store " in out
    assert "What doctor finds" in read((ended / "report.html").read_bytes()).text


HOSTILE = "</script></div><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def hostile(run):
    """Adds a group whose texts are markup, as its task's last."""
    store = Store(run / "buffer", map_gib=0.25)
    with store.write() as txn:
        txn.add_task("train", "", 0, stores.Task("door/0000", "doors", 0))
        stores._write_group(txn, 40, 0, stores.Made(reward=1.0, observation=HOSTILE))
    store.close()


def test_texts_of_policies_stay_texts(ended):
    hostile(ended)
    written(ended)
    assert HOSTILE in read((ended / "report.html").read_bytes()).text


@pytest.mark.parametrize("width", [420, 1280])
def test_a_browser_shows_a_report_without_a_server_at_any_width(ended, width):
    needed()
    hostile(ended)
    written(ended, "--out", str(ended / "a report.html"))
    browser = Browser((width, 900))
    try:
        browser.ask("Page.navigate", url=f"file://{ended}/a%20report.html")
        browser.wait("document.readyState === 'complete' && document.title")
        assert HOSTILE in browser.value("document.body.textContent")
        assert browser.value("document.title") == "Run first"
        assert browser.value("document.querySelectorAll('figure svg').length") == 4
        wide = browser.value("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0 and browser.said == []
    finally:
        browser.close()
