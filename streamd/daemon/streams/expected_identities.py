"""The identities that `expect` asks of a stream, by which the daemons of many hosts agree without talking. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from streamd.core.spec import OrderId, PixelId


@dataclass(frozen=True, slots=True)
class ExpectedIdentities:
    """The order id and the pixel id that a stream must have; None stands for any."""

    order: str | None = None
    pixels: str | None = None

    def explain_other_order(self, stream: str, found: OrderId) -> str | None:
        """Returns why a stream of another order must not be served; None if its order is the expected one."""
        if self.order in {None, found}:
            return None
        return (
            f"expect.{stream}.order: {self.order} is expected, but the files, labels and settings of this host give "
            f"{found}; use the list of the other hosts (streamd manifest export and import), and their batch_size, "
            "drop_remainder and shuffle, or correct expect; streamd check prints both identities"
        )

    def explain_other_pixels(self, stream: str, found: PixelId) -> str | None:
        """Returns why a stream of other pixels must not be served; None if its pixels are the expected ones."""
        if self.pixels in {None, found}:
            return None
        return (
            f"expect.{stream}.pixels: {self.pixels} are expected, but this installation makes {found}; install the "
            "versions of the other hosts, and use their image and transform, or correct expect; streamd check prints "
            "both identities"
        )
