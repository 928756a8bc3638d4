"""A run as one HTML file."""

import json
import re

import pytest
from click.testing import CliRunner

from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.viewer.attempt_page import Texts
from launch.cli import main
from launch.inspection.report import contents, corrections, curves, group_of, summary
from r3l.files.progress_lines import History
from r3l.files.run_folder import RunFolder
from tests.buffer.viewer import stores
from tests.buffer.viewer.chromium import Browser
from tests.launch.fakes import refused
from tests.launch.inspection.conftest import step
from tests.r3l.files.made import evaluation


def written(run, *options):
    result = CliRunner().invoke(main, ["report", str(run), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_report_holds_curves_corrections_settings_and_versions(ended):
    assert "report.html: " in written(ended)
    text = (ended / "report.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    assert data["summary"] == [
        "4 of 60 steps", "0.5 minutes from the first step to the last",
        "success in evaluations 0.25 → 0.75",
    ]  # fmt: skip
    assert [one["name"] for one in data["curves"]] == ["Success in evaluations", "Success", "Loss"]
    assert len(data["corrections"]) == len(data["group"]) == 4
    assert "seed: 7" in data["config"] and data["run"]["states"] == {"train": {"trained": 40}}
    assert {"r3l", "Python", "numpy", "schema of the store"} <= {
        name for name, _ in data["versions"]
    }
    assert not list(ended.glob(".building-*"))


def test_a_long_run_is_thinned_evenly_with_its_ends(ended):
    steps = [step(n, **{"learner/loss": float(n)}) for n in range(5000)]
    (tested, loss) = curves(steps, [evaluation(0, 0.5)])
    points = loss["lines"][0]["points"]
    assert len(points) == 400 and (points[0], points[-1]) == ([0, 0.0], [4999, 4999.0])
    assert tested["lines"][0]["points"] == [[0, 0.5]]
    assert summary(History([], []), 60) == ["no step was trained"]


def test_a_run_without_a_store_has_a_report_too(ended):
    (ended / "buffer" / "data.mdb").unlink()
    assert contents(RunFolder(ended))["groups"] == [] and "report.html" in written(ended)


def test_what_is_wrong_is_one_line(ended, tmp_path):
    assert "has no config.yaml" in refused("report", tmp_path / "other")
    line = refused("report", ended, "--out", tmp_path / "no" / "file.html")
    assert line.endswith("cannot be written (No such file or directory); choose another with --out")
    (ended / "config.yaml").write_text("learner: {stepz: 1}\n")
    assert "learner.stepz" in refused("report", ended)


def test_a_correction_of_a_store_is_shown_alone_and_in_words(ended):
    store = Store(ended / "buffer", read_only=True)
    found = corrections(store, list(store_reads.rows(store)))
    assert len(found) == 4 and found[0].result == "reward 0.00 → 1.00 from step 1"
    shown = group_of(found[0], store, Texts(None))
    assert [pair["retry"]["slot"] for pair in shown["pairs"]] == [0]
    assert "step 1 spoils" in found[0].retry.reflection.advice
    store.close()


def test_a_damaged_group_is_left_out(ended):
    store = Store(ended / "buffer", map_gib=0.25)
    with store.write() as txn:
        for number in range(1, 41, 4):
            txn._raw.put(f"g{number:010}".encode(), b"x" * 40, db=txn._tables["group"])
    found = corrections(store, list(store_reads.rows(store)))
    assert {each.task_id for each in found} == {"door/0001", "door/0002", "door/0003"}
    store.close()


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


def test_a_report_is_read_in_a_browser_without_a_server(browser, ended):
    store = Store(ended / "buffer", map_gib=0.25)
    hostile = "</script><script>document.title='owned'</script>"
    with store.write() as txn:
        txn.add_task("train", "", 4, stores.Task("door/0004", "doors", 4))
        made = stores.Made(reward=1.0, observation=hostile)
        stores._write_group(txn, 40, 4, made)
    store.close()
    written(ended, "--out", str(ended / "a report.html"))
    browser.open(f"file://{ended}/a report.html")
    text = browser.value("document.querySelector('main').innerText")
    for words in ("Success in evaluations", "instructive corrections", "4 of 60 steps"):
        assert words in text
    assert browser.value("document.querySelectorAll('figure').length") == 3
    links = "[...document.querySelectorAll('main td a')]"
    browser.value(f"{links}.find(one => one.innerText === 'door/0004').click()")
    browser.wait("document.querySelectorAll('.pair').length === 1")
    assert hostile in browser.value(
        "document.querySelector('.columns > div .observation').textContent"
    )
    assert "owned" not in browser.value("document.title")
    browser.value("location.hash = '#group/g0000000001'")
    browser.wait("document.querySelector('main').innerText.includes('not part of this report')")
    assert browser.said == []


def test_a_curve_of_few_values_has_points_and_its_labels_are_not_cut(browser, ended):
    written(ended, "--out", str(ended / "curve.html"))
    browser.open(f"file://{ended}/curve.html")
    browser.value(
        "document.querySelector('main').replaceChildren("
        "curve('tokens', [{name: 'all', points: [[0, 0], [5, 1234567], [10, -7]]}]))"
    )
    assert browser.value("document.querySelectorAll('figure circle').length") == 3
    lefts = "[...document.querySelectorAll('figure text')].map(one => one.getBBox().x)"
    assert browser.value(f"Math.min(...{lefts})") >= 0
    labels = browser.value("document.querySelector('figure').textContent")
    assert "1,234,567" in labels and "step 10" in labels
