"""The cluster that docs/cluster.md shows: Ray's own launcher accepts it, and it starts what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

pytestmark = pytest.mark.ray

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"


def read_example(first_line: str) -> dict[str, Any]:
    """The YAML of the page that begins with this line."""
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (text,) = [block for block in blocks if block.startswith(first_line)]
    example: dict[str, Any] = YAML(typ="safe").load(text)
    return example


def test_ray_up_accepts_the_example() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config  # noqa: PLC0415 - an extra, and slow

    config = prepare_config(read_example("# cluster.yaml: ray up"))
    validate_config(config)
    nodes = config["available_node_types"]
    assert sum(each["max_workers"] for each in nodes.values()) == len(config["provider"]["worker_ips"])


def test_a_mistake_in_the_example_would_be_found() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config  # noqa: PLC0415 - as above

    wrong = read_example("# cluster.yaml: ray up") | {"head_start_commands": []}
    with pytest.raises(Exception, match="head_start_commands"):
        validate_config(prepare_config(wrong))
