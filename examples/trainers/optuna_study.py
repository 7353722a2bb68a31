"""Optuna, two trials at a time:  python optuna_study.py RUN

Trials that are in step share each decoded batch, and a trial that is pruned closes its streams. Start it again after a
crash: RUN/study.log keeps the trials that were done, and others take the place of those that were cut off. The best
weights come to RUN/weights.pt; RUN/N/receipts-0.jsonl says which samples trial N had.
"""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path

import optuna
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

import streamd
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from streamd.frameworks.torch import loader, normalization

EPOCHS = 3
TRIALS = 6
SEED = threading.Lock()  # torch has one seed for all threads


def train(trial: optuna.Trial, client: streamd.Client, run: Path) -> float:
    """Returns the loss of the validation after EPOCHS."""
    name = f"trial-{trial.number}"  # as `streamd status` and the dashboard show it
    rate = trial.suggest_float("rate", 0.001, 0.1, log=True)
    run.mkdir(exist_ok=True)
    train, validation = [client.subscribe(part, name=name) for part in ("train", "validation")]
    with train, validation:
        classes = len(train.spec.labels["label"].classes)
        layers = [torch.nn.AvgPool2d(8), torch.nn.Flatten()]
        with SEED:
            torch.manual_seed(0)
            model = torch.nn.Sequential(normalization(train.spec), *layers, torch.nn.Linear(48, classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        data, held_back = loader(train), loader(validation)
        receipts = ReceiptFile(receipt_file_path(run, 0))
        for epoch in range(EPOCHS):
            for images, labels in data:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
            receipts.append_new_receipts(train.receipts)
            with torch.no_grad():
                losses = [torch.nn.functional.cross_entropy(model(x), y, reduction="none") for x, y in held_back]
            trial.report(torch.cat(losses).mean().item(), epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        torch.save(model.state_dict(), run / "weights.pt")
    return torch.cat(losses).mean().item()


def main(run: Path) -> None:
    """Runs trials until TRIALS are done, on one connection."""
    run.mkdir(exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(run / "study.log")))
    study = optuna.create_study(storage=storage, study_name="rate", load_if_exists=True)
    for trial in study.get_trials(states=[TrialState.RUNNING]):  # of a process that was killed
        study.tell(trial.number, state=TrialState.FAIL)
    done = len(study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED]))
    with streamd.connect() as client:
        study.optimize(lambda trial: train(trial, client, run / str(trial.number)), n_trials=TRIALS - done, n_jobs=2)
    shutil.copy(run / str(study.best_trial.number) / "weights.pt", run / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
