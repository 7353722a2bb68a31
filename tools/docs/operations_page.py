"""The tables in docs/operations.md, from the code and the advice beside this file: `scripts/docs operations`."""

from __future__ import annotations

from typing import Final

from operations_bounds import bound_table
from operations_commands import command_table, signal_table
from operations_errors import (
    doing_table,
    error_table,
    event_table,
    fault_table,
    refusal_table,
    stage_table,
    stop_table,
    trouble_table,
)
from operations_metrics import alert_table, metric_table
from operations_settings import daemon_table, environment_table, source_table, stream_table, unit_table
from operations_sizing import example
from operations_table import PAGE, Part, with_parts
from operations_versions import version_table

PARTS: Final[dict[str, Part]] = {
    "sizing": example,
    "daemon": daemon_table,
    "streams": stream_table,
    "sources": source_table,
    "environment": environment_table,
    "unit": unit_table,
    "metrics": metric_table,
    "alerts": alert_table,
    "verdicts": stage_table,
    "errors": error_table,
    "refusals": refusal_table,
    "troubles": trouble_table,
    "events": event_table,
    "stops": stop_table,
    "doing": doing_table,
    "faults": fault_table,
    "commands": command_table,
    "statuses": signal_table,
    "bounds": bound_table,
    "versions": version_table,
}

if __name__ == "__main__":
    PAGE.write_text(with_parts(PAGE.read_text(encoding="utf-8"), PARTS), encoding="utf-8")
