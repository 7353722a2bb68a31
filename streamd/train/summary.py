"""What `streamd-train` says at its end. Pure."""

from __future__ import annotations

from streamd.receipts import Receipt


def receipt_line(receipt: Receipt) -> str:
    """One epoch in one line, such as `epoch 3: 125 steps, 4000 samples, missed 0, repeated 0, bad 0: ok`."""
    facts = [
        f"{receipt.steps} steps",
        f"{receipt.samples} samples",
        f"missed {receipt.missed}",
        f"repeated {receipt.repeated}",
        f"bad {receipt.bad}",
    ]
    if receipt.dropped:
        facts.append(f"dropped {receipt.dropped}")
    if receipt.changed:
        facts.append("pixels changed since the token was made")
    if not receipt.complete:
        facts.append("stopped early")
    return f"epoch {receipt.epoch}: {', '.join(facts)}: {_verdict(receipt)}"


def _verdict(receipt: Receipt) -> str:
    if receipt.ok:
        return "ok"
    adds_up = receipt.missed == receipt.repeated == 0
    return "NOT OK, the order differs from the daemon's" if adds_up else "NOT OK"


def speed_line(samples: int, elapsed_s: float, waited_s: float) -> str:
    """The rate of training and the share of it spent waiting for batches."""
    rate, share = (samples / elapsed_s, waited_s / elapsed_s) if elapsed_s > 0 else (0.0, 0.0)
    return f"{samples} samples in {elapsed_s:.1f} s: {rate:,.0f} samples/s, {share:.0%} of the time waiting for batches"
