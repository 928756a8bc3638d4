"""`r3l-launch report`: writes a run as one HTML file that opens without a process or a network."""

from pathlib import Path

import click

from launch.inspection import doctor, snapshot
from launch.inspection.pages.page_file import check_place, write_page
from launch.inspection.pages.run_data import read_run
from launch.inspection.pages.run_page import run_page
from r3l.run.files.run_folder import RunFolder, run_folder
from r3l.run.process.command_line import echo


@click.command()
@click.argument("name", metavar="RUN")
@click.option("--out", type=click.Path(path_type=Path), help="file; default: RUN/report.html")
def report(name: str, out: Path | None) -> None:
    """Write a run as one HTML file: what was trained and on what, curves with intervals, texts
    before and after, costs, settings, and what was not measured. The run may be running, damaged or
    unfinished."""
    folder = RunFolder(run_folder(name)).require_run()
    target = out or folder.path / "report.html"
    check_place(target, "--out")
    data = read_run(folder)
    alive = data.read("processes", lambda: bool(snapshot.processes_of(folder.path)), False)
    none = list[doctor.Finding]()
    wrong = data.read("what doctor finds", lambda: doctor.findings(snapshot.take(folder)), none)
    found = [(finding.what, finding.remedy) for finding in wrong]
    page = run_page(data, alive=alive, wrong=found)
    echo(write_page(target, page, "--out"))
    for cause in data.unread:
        echo(f"not readable, as the page says: {cause}", err=True)
