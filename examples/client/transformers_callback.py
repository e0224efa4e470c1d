"""ESync in a Trainer of Hugging Face's transformers: a callback averages after each optimizer step.

trainer = EsyncTrainer(model, arguments, train_dataset=..., callbacks=[Esync("esync-outer")])
trainer.train()
"""

from transformers import Trainer, TrainerCallback

import esync


class EsyncTrainer(Trainer):
    """Without DistributedDataParallel, which would sum the gradients in each step."""

    def _wrap_model(self, model, training=True, dataloader=None):
        return model

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.prepare_model = lambda model, *_, **__: model


class Esync(TrainerCallback):
    def __init__(self, rule="esync", **options):
        self.rule, self.options = rule, options

    def on_train_begin(self, arguments, state, control, model=None, optimizer=None, **_):
        self.samples = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
        self.worker = esync.Worker(model, optimizer, self.rule, **self.options).__enter__()

    def on_step_end(self, arguments, state, control, **_):
        self.worker.step(self.samples)
        control.should_training_stop |= self.worker.is_done

    def on_train_end(self, arguments, state, control, **_):
        self.worker.__exit__(None, None, None)
