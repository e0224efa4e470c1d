"""A Trainer of Hugging Face's transformers with the callback of examples/client; each rank prints as JSON the sum of
its weights after each step and after each average. `python transformers_ranks.py FOLDER`, with RANK and the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainerCallback, TrainingArguments

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "client"))
from transformers_callback import Esync, EsyncTrainer


class Words(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words.sum() % 2}


def main() -> None:
    torch.set_num_threads(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, **sizes))
    said: list[tuple[str, float]] = []

    def say(when: str) -> None:
        said.append((when, sum(each.detach().double().sum().item() for each in model.parameters())))

    class Before(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            say("before")

    callback = Esync("local-sgd", sync_every=3, on_round=lambda _: say("after"))
    arguments = TrainingArguments(
        sys.argv[1], per_device_train_batch_size=8, num_train_epochs=1, learning_rate=1e-3, use_cpu=True,
        ddp_backend="gloo", report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    EsyncTrainer(model, arguments, train_dataset=Words(), callbacks=[Before(), callback]).train()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
