"""The logs of a worker's sound rounds as they stand in its files, for tests of what workers write."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.run_logs import rounds


def read_rounds(folder: Path, warn: Callable[[str], None]) -> list[dict[str, Any]]:
    """The JSON objects of the rounds that count, each with its value of the metric, which may have come later."""
    sound = {one.number: one for one in rounds.read_rounds(folder, warn)}
    texts = [line for path in rounds.round_files(folder) for line in path.read_text().splitlines()]
    found: dict[int, dict[str, Any]] = {}
    for text in texts:
        record = json.loads(text)
        if (one := sound.get(record["num_iters"])) is not None:
            logged = {key: value for key, value in record.items() if key not in ("accuracy", "metric")}
            found[one.number] = logged | (one.evaluation[0].logged(one.evaluation[1]) if one.evaluation else {})
    return [found[number] for number in sound]
