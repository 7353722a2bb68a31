"""A made-up comparison for the tests of its figures, its page and its charts."""

from __future__ import annotations

from compare_results import Comparison, Round, Settings, Taken, Terms, Verified
from report import Machine

ROUND: Round = {
    "s/limit/1": Taken((100.0,)),
    "s/streamd/1": Taken((90.0,), (70.0,), (0.3,)),
    "s/naive/1": Taken((30.0,), (29.0,), (0.1,)),
    "s/tf_data/1": Taken((45.0,), (44.0,), (2.0,)),
    "s/streamd/4": Taken((80.0, 84.0, 86.0, 95.0)),
    "s/tf_data/4": Taken((10.0, 11.0, 12.0, 13.0)),
    "s/streamd/1/workers=1": Taken((48.0,)),
    "s/limit/1/workers=1": Taken((52.0,)),
    "decoded/memmap/1": Taken((1000.0,), (800.0,)),
    "decoded/streamd/4": Taken((500.0, 500.0, 500.0, 500.0)),
}
SETTINGS = Settings("tensorflow 2.21", "AUTOTUNE", "tensorflow.org: performance guide")
SEEN = Verified(samples=20_000, of=20_000, ids=True, missed=0, repeated=0, typical=0.1, worst=1.4)


def comparison(*rounds: Round, **facts: object) -> Comparison:
    terms = Terms(cores=2, processor="a processor", seconds=4.0, settle_s=2.0, warm_s=6.0)
    made = Comparison(Machine("abc", "2026-01-01", 2, "3.11"), terms, list(rounds))
    for name, value in facts.items():
        setattr(made, name, value)
    return made


FOUND = comparison(
    ROUND,
    settings={"s/tf_data": SETTINGS},
    verified={"s/tf_data": SEEN},
    failures={"s/spdl_threads": "libavcodec.so.61: cannot open shared object file (exit 1)"},
)
