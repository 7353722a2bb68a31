"""Your own torch loop, tracked by MLflow:  python mlflow_tracking.py RUN

RUN/mlflow.db and RUN/artifacts get, for each epoch, the loss, the names of the five samples with the greatest loss, and
the receipts, which `streamd verify` adds up. `mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db` shows them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mlflow
import torch

import streamd
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from streamd.frameworks.torch import loader, normalization

EPOCHS = 3
WORST = 5


def main(run: Path) -> None:
    """Trains for EPOCHS, and looks at the losses of the validation after each."""
    torch.manual_seed(0)
    run.mkdir(exist_ok=True)
    mlflow.set_tracking_uri(f"sqlite:///{run.absolute() / 'mlflow.db'}")
    if mlflow.get_experiment_by_name("trees") is None:
        mlflow.create_experiment("trees", (run.absolute() / "artifacts").as_uri())
    mlflow.set_experiment("trees")
    client = streamd.connect()
    streams = client.subscribe("train", epochs=EPOCHS), client.subscribe("validation")
    with client, streams[0] as stream, streams[1] as validation, mlflow.start_run():
        # What the data were: the same order_id and pixel_id give the same batches again.
        mlflow.log_params({name: getattr(stream.spec, name) for name in ("order_id", "pixel_id", "samples")})
        classes = len(stream.spec.labels["label"].classes)
        layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        model = torch.nn.Sequential(normalization(stream.spec), *layers, torch.nn.Linear(8, classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        receipts = ReceiptFile(receipt_file_path(run, stream.rank))
        for epoch, steps in enumerate(loader(stream).epochs()):
            for images, labels in steps:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            mlflow.log_metric("loss", loss.item(), epoch)
            worst: list[tuple[float, int]] = []
            for batch in next(validation.epochs(anew=True)):
                images, labels = torch.tensor(batch.images).permute(0, 3, 1, 2), torch.tensor(batch.labels["label"])
                with torch.no_grad():
                    losses = torch.nn.functional.cross_entropy(model(images), labels, reduction="none")
                worst = sorted([*worst, *zip(losses.tolist(), batch.sample_ids.tolist(), strict=True)])[-WORST:]
            names = validation.names(sample for _, sample in worst)
            mlflow.log_dict(dict(zip(names, [loss for loss, _ in worst], strict=True)), f"worst-{epoch}.json")
            receipts.append_new_receipts(stream.receipts)
            mlflow.log_artifact(str(receipts.path))
        torch.save(model.state_dict(), run / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
