"""The trained network in MXNet's own format, which `mx.gluon.SymbolBlock.imports` and other programs of MXNet read.

A saved model is three files: `best.json` describes it and names the other two, `best-symbol.json` (the layers) and
`best-0120.params` (the parameters after round 120). The layers of a network never change, and the description is
replaced last, so it names whole parameters of its own, wherever the process or the disk fails. Parameters have gluon's
structural names, such as `0.weight`, in both files, so that `Block.load_parameters` reads them too. A network that
cannot be called with a symbol, such as a Block that is no HybridBlock, has no file of layers.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config import DATASETS, NETWORKS
from esync.metric import ACCURACY, Metric, logged_value
from trainer.network import JobNetwork
from trainer.run_logs.earlier_runs import BEST, FINAL, NEWEST, saved_files
from utils import SetupError, read_json, write_atomically, write_json


def input_names(number: int) -> list[str]:
    """The names of a network's inputs in the file of its layers, as of gluon's `export`."""
    return ["data"] if number == 1 else [f"data{each}" for each in range(number)]


def _names_of(about: Mapping[str, Any]) -> list[str]:
    """The inputs' names, by a description; empty if they are not known."""
    return input_names(len(about.get("inputs", [about["input"]] if "input" in about else [])))


class ModelSaver:
    """Saves the network of the worker that evaluates in its log folder: the best so far, and at the end the last."""

    def __init__(self, folder: Path, network: JobNetwork, about: Mapping[str, Any], metric: Metric = ACCURACY) -> None:
        """`about` has entries of the description, for users of the model; `metric` says which model is the best."""
        self._metric = metric
        self._folder = folder
        self._network = network
        self._about = dict(about)
        self._best: float | None = None
        self.unwritten = ""  # why the last model is not saved

    def path_of(self, kind: str) -> Path:
        """Its description."""
        return self._folder / f"{kind}.json"

    def begin(self) -> None:
        """Reads the metric's best value so far, where a job is resumed."""
        if (path := self.path_of(BEST)).exists():
            try:
                metric, value = logged_value(read_json(path)) or (None, None)
                if metric != self._metric or metric.fault(value):
                    raise ValueError
                self._best = value
            except (SetupError, TypeError, ValueError):
                logging.warning("%s is no description of a saved model: the best is looked for anew", path)

    def due(self, value: float | None, last: bool) -> list[str]:
        """The kinds to save: BEST where no model before was as good, FINAL at the end. `value` is that of the metric,
        where the model was evaluated."""
        is_best = value is not None and self._metric.is_better(value, self._best)
        return [BEST] * is_best + [FINAL] * last

    def save(self, kinds: Sequence[str], number: int, value: float | None) -> bool:
        """Saves the network as it is now, once for each kind. Training is not affected: the layers come from a call of
        the network with a symbol, and the parameters are copied. `number`: of the round. Returns whether all could be
        written."""
        symbol, parameters = self._network.saved(_names_of(self._about))
        are_written = [self._write(kind, number, value, symbol, parameters) for kind in kinds]
        if FINAL in kinds and are_written[-1]:
            its = "" if self._best is None else f"{self._metric.name} {self._metric.text(self._best)}"
            best = its and f"; the best, of {its}: {BEST}.json"
            logging.info("the trained network: %s%s", self.path_of(FINAL), best)
        return all(are_written)

    def evaluated(self, value: float) -> None:
        """Saves the NEWEST model as the BEST too, if its value makes it that."""
        if BEST in self.due(value, last=False):
            newest = SavedModel.find(self.path_of(NEWEST))
            symbol = newest.symbol.read_bytes() if newest.symbol is not None else None
            self._write(BEST, newest.about["round"], value, symbol, newest.parameters.read_bytes())

    def end(self) -> None:
        """Removes the NEWEST model, which is only for evaluations."""
        for path in saved_files(self._folder, NEWEST):
            path.unlink()

    def _write(self, kind: str, number: int, value: float | None, symbol: bytes | None, parameters: bytes) -> bool:
        """Writes the files of a model; a failure is a warning, and the files before stay."""
        layers = None if symbol is None else f"{kind}-symbol.json"
        files = {"symbol": layers, "parameters": f"{kind}-{number:04d}{self._network.suffix}"}
        description = self.path_of(kind)
        try:
            for name, content in zip(files.values(), (symbol, parameters), strict=True):
                if name is not None and content is not None:
                    write_atomically(self._folder / name, content)
            write_json(description, files | self._about | {"round": number, **self._metric.logged(value)})
            for path in saved_files(self._folder, kind):
                if path.name not in {description.name, *files.values()}:
                    path.unlink()
        except SetupError as error:
            if kind == FINAL:
                self.unwritten = str(error)
            logging.warning("warning: %s; the model is not saved", error)
            return False
        if kind == BEST:
            self._best = value
        return True


@dataclass(frozen=True)
class SavedModel:
    """A saved model: its description, and the paths of its files."""

    about: Mapping[str, Any]
    symbol: Path | None
    parameters: Path

    @classmethod
    def find(cls, path: Path) -> SavedModel:
        """Reads a description, such as `logs/cpu/best.json`. Raises SetupError if it is no description, or a file that
        it names is missing."""
        about = read_json(path)
        try:
            symbol = about["symbol"] and path.parent / about["symbol"]
            found = cls(about, symbol, path.parent / about["parameters"])
        except (KeyError, TypeError, ValueError):
            raise SetupError(f"{path} is no description of a saved model; name a {BEST}.json or {FINAL}.json") from None
        for file in (found.symbol, found.parameters):
            if file is not None and not file.is_file():
                raise SetupError(f"{file} is not there, and {path} names it: copy the three files together")
        return found

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of a sample's only input, such as (C, H, W) of images. Raises SetupError if there are several, or it is not
        known."""
        try:
            return tuple(map(int, self.about["input"]["shape"]))
        except (KeyError, TypeError, ValueError):
            raise SetupError(
                f"{self.parameters}: the model has no single input of a known shape; load it in a program of your own"
            ) from None

    @property
    def layers(self) -> str:
        """The path of the file of its layers. Raises SetupError if there is none."""
        if self.symbol is None:
            raise SetupError(
                f"{self.parameters} has no file of the layers beside it; load it by "
                f"{'load_state_dict()' if self.parameters.suffix == '.pt' else 'load_parameters()'} of the network"
            )
        return str(self.symbol)

    def load(self) -> Any:
        """The gluon network on the CPU, ready to be called. Raises SetupError if MXNet cannot read it, or there is no
        file of its layers."""
        from trainer.engine import mx

        try:
            with warnings.catch_warnings():
                # The file does not give the input's type; MXNet's default is float32.
                warnings.filterwarnings("ignore", "Cannot decide type")
                return mx.gluon.SymbolBlock.imports(
                    self.layers, _names_of(self.about), str(self.parameters), ctx=mx.cpu()
                )
        except (mx.MXNetError, ValueError, AssertionError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise SetupError(f"{self.symbol} with {self.parameters.name} cannot be read: {reason}") from None


def job_file_of(model: SavedModel, given: Path | None) -> str:
    """The path of the job file of a model's training, or of another one; empty for a built-in job. Raises SetupError if
    it is not known, or not there."""
    found = str(given or model.about.get("job") or "")
    if not found and (model.about.get("network") not in NETWORKS or model.about.get("dataset") not in DATASETS):
        raise SetupError(f"{model.parameters} is of a job file: name it with --job FILE")
    if found and not Path(found).is_file():
        raise SetupError(f"{model.parameters}: its job file {found} is not there: name it with --job FILE")
    return found
