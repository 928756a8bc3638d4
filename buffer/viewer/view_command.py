"""The command `r3l-buffer view`."""

from pathlib import Path

import click

from buffer.storage.store import Store
from buffer.storage.store_path import check_store, store_path
from buffer.viewer.attempt_page import Texts
from buffer.viewer.catalogue import Catalogue
from buffer.viewer.evaluation_catalogue import RESULTS, EvaluationCatalogue
from buffer.viewer.web_server import Viewed, Viewer
from r3l.errors import UserError
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.run.process.command_line import echo

PORT = 8420


@click.command()
@click.argument("place", metavar="RUN")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="port on 127.0.0.1; 0: any free one",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="model folder whose tokenizer shows tokens as text; default: the run's",
)
def view(place: str, port: int, model: Path | None) -> None:
    """Show a run, a store or an evaluation in a browser on this machine. RUN is a run's name, or
    the folder to show. The run may still train."""
    if (Path(place) / RESULTS).is_file():
        if model is not None:
            raise UserError(f"--model {model}: an evaluation has no tokens to read; leave it out")
        if not (evaluation := EvaluationCatalogue(Path(place))).read():
            raise UserError(f"view {place}: found no attempt in {RESULTS}; check the path")
        _serve(Viewed(place, evaluation), port)
        return
    check_store(folder := store_path(place), "view")
    folder = folder.resolve()
    with Store(folder, map_gib=None, read_only=True) as store:  # maps what its service may write
        _serve(view_of(store, folder.parent, model), port)


def _serve(shown: Viewed, port: int) -> None:
    with Viewer(shown, port) as viewer:
        echo(f"{viewer.viewed.title}: open {viewer.url} (Ctrl-C ends the viewer)")
        viewer.serve_forever()


def view_of(store: Store, run: Path, model: Path | None = None) -> Viewed:
    """Returns the view of a store, with the run's settings if `run` has a config.yaml. Raises
    UserError if `model` has no tokenizer."""
    if model is not None and not (model / "tokenizer.json").is_file():
        raise UserError(f"--model {model}: has no tokenizer.json; give a model folder")
    config, notice = _config(run / "config.yaml")
    if config is None:
        return Viewed(str(store.folder), Catalogue(store, Texts(model)), notice)
    texts = Texts(model or Path(config.model))
    facts = (("environment", config.env.title), ("algorithm", config.algorithm.name),
             ("model", Path(config.model).name))  # fmt: skip
    return Viewed(run.name, Catalogue(store, texts), "", facts)


def _config(file: Path) -> tuple[RunConfig | None, str]:
    """Returns the run's configuration, or why it is unknown."""
    if not file.is_file():
        return None, f"There is no {file.name} next to the store, so the run's model is unknown."
    try:
        return configuration.load(file), ""
    except UserError as error:  # of another version of r3l, or changed by hand
        return None, f"{error}; so the run's model is unknown."
