"""A rank's own checkpoints, FOLDER/rank-K/round-N.pt: after a restart of all ranks the job goes on from the newest
round that each can read."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from pathlib import Path
from typing import Any

import torch

KEPT = 2  # ranks may have died while others had already saved the next one
_NAME = re.compile(r"round-([1-9]\d*)\.pt")


class Checkpoints:
    """One rank's."""

    def __init__(self, folder: Path, rank: int, num_workers: int) -> None:
        self._folder, self._num_workers = folder / f"rank-{rank}", num_workers
        self._readable: dict[int, dict[str, Any]] = {}
        for round_, path in self._files().items():
            try:
                saved = torch.load(path, map_location="cpu", weights_only=True)
                if saved["num_workers"] == num_workers:
                    self._readable[round_] = saved
                else:
                    logging.warning("%s is of %d workers, not of %d", path, saved["num_workers"], num_workers)
            except Exception as error:  # whatever is wrong with the file, an older one may be right
                logging.warning("%s cannot be read: %s", path, (str(error).splitlines() or [type(error).__name__])[0])

    def rounds(self) -> list[int]:
        """Those that this rank can go on from."""
        return [*self._readable]

    def go_on(self, round_: int) -> dict[str, Any]:
        """What was saved after this round; empty for 0. Files of later rounds, which are lost, are set aside as
        FILE.before: else one could count for the same round of this run."""
        for later, path in self._files().items():
            if later > round_:
                path.replace(path.with_name(f"{path.name}.before"))
        saved, self._readable = self._readable.get(round_, {}), {}
        return saved

    def save(self, round_: int, state: dict[str, Any]) -> None:
        """Saves atomically, and removes all but the last KEPT. A full disk is told, and training goes on."""
        path = self._folder / f"round-{round_}.pt"
        temporary = path.with_suffix(".tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            torch.save({**state, "num_workers": self._num_workers}, temporary)
            os.replace(temporary, path)
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            logging.warning("%s is not saved: %s; training goes on", path, str(error).splitlines()[0])
            return
        files = self._files()
        for old in sorted(files, reverse=True)[KEPT:]:
            files[old].unlink(missing_ok=True)

    def _files(self) -> dict[int, Path]:
        found = ((_NAME.fullmatch(path.name), path) for path in self._folder.glob("*"))
        return {int(match[1]): path for match, path in found if match}
