"""Judges the demo's model by one validation epoch: `python -m streamd.cli.demo.judge ENDPOINT MODEL CHART`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from streamd.cli.demo.chart import compute_scores, draw_scatter_chart, format_scores
from streamd.client import connect
from streamd.errors import StreamdError
from streamd.frameworks.keras import load_keras

_EXAMPLES = 6
_LEARNED_BELOW = 0.7  # of the mean's error: what counts as having learned


def judge_model(endpoint: str, model_path: Path, chart: Path) -> str:
    """Draws the chart; returns its caption. Raises StreamdError when the model does not clearly beat the mean."""
    model = load_keras().models.load_model(model_path)
    truth, predicted, images = [], [], []
    with connect(endpoint) as client, client.subscribe("validation", epochs=1) as stream:
        for batch in stream:
            truth.append(batch.labels["angle"])
            predicted.append(np.asarray(model.predict_on_batch(batch.copy().images)).reshape(-1))
            images.append(batch.images[0].copy())
    all_truth, all_predicted = np.concatenate(truth), np.concatenate(predicted)
    starts = np.cumsum([0, *(each.size for each in truth[:-1])])
    examples = [(image, all_truth[row], all_predicted[row]) for image, row in zip(images, starts, strict=True)]
    draw_scatter_chart(
        all_truth,
        all_predicted,
        chart,
        title="Steering angle: predictions against truth",
        examples=examples[:_EXAMPLES],
    )
    scores = compute_scores(all_truth, all_predicted)
    if scores.mae > _LEARNED_BELOW * scores.mean_mae:
        raise StreamdError(f"the model did not learn: {format_scores(scores)}")
    return format_scores(scores)


def main() -> None:
    endpoint, model, chart = sys.argv[1:]
    try:
        text = judge_model(endpoint, Path(model), Path(chart))
    except StreamdError as error:
        sys.stderr.write(f"streamd demo: {error}\n")
        raise SystemExit(error.exit_status) from None
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
