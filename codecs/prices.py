"""Prices as feeds carry them: an integer and the number of its decimal places.

A `Price` is exact; turn it into a `float`, a `Decimal` or text where that is wanted. `to_raw` goes
the other way and refuses to round. Where a field of the message gives the decimal places,
`ScaleCodes` says what each of its values means.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from feedhandler.codecs.errors import UsageError

#: Most decimal places of a price; a larger scale on the wire (a u8 goes up to 255) is nonsense.
SCALE_MAX = 18
#: Most zeros that a price's integer lacks: an exponent above 0, which few readers take.
ZEROS_MAX = 9
#: Stands in `ScaleCodes` for a byte that gives no decimal places.
NO_DECIMALS = -128


class ScaleCodes(msgspec.Struct, frozen=True):
    """Decimal places that a one-byte scale field gives, by its byte: 256 of them.

    They are -`ZEROS_MAX`..`SCALE_MAX`, or `NO_DECIMALS`; those below 0 are zeros that the price's
    integer lacks.
    """

    decimals: tuple[int, ...]

    def decimals_of(self, value: int | str | None) -> int | None:
        """Return the decimal places that the field's value gives; None where there are none."""
        if value is None:
            return None
        byte = ord(value or "\0") if isinstance(value, str) else value & 0xFF
        found = self.decimals[byte]
        return found if found >= 0 else None


def scale_codes(decimals: Mapping[int, int]) -> ScaleCodes:
    """Return the codes of a scale field, of which `decimals` gives bytes and decimal places."""
    return ScaleCodes(tuple(decimals.get(byte, NO_DECIMALS) for byte in range(256)))


#: The integer is the number of decimal places, a digit gives it, or it is the power of ten.
COUNTS = scale_codes({places: places for places in range(SCALE_MAX + 1)})
DIGITS = scale_codes({ord("0") + places: places for places in range(10)})
EXPONENTS = scale_codes({-places & 0xFF: places for places in range(-ZEROS_MAX, SCALE_MAX + 1)})


class Price(msgspec.Struct, frozen=True, order=False):
    """`raw` / 10**`scale`, exactly.

    `scale` is None where it depends on reference data that has not been seen; such a price has no
    value yet, only its `raw` integer. Two prices are equal when integer and scale are: as on the
    wire, not as numbers.
    """

    raw: int
    scale: int | None

    @property
    def known(self) -> bool:
        """Whether the scale is known."""
        return self.scale is not None

    @property
    def decimal(self) -> Decimal:
        """The exact value. Raises `UsageError` while the scale is unknown."""
        return Decimal(self.raw).scaleb(-self._scale())

    def __float__(self) -> float:
        """Return the nearest float. Raises `UsageError` while the scale is unknown."""
        return self.raw / 10 ** self._scale()

    def __str__(self) -> str:
        return f"{self.decimal:f}" if self.known else f"{self.raw} (scale unknown)"

    def _scale(self) -> int:
        if self.scale is None:
            raise UsageError(
                f"the scale of price {self.raw} is not known",
                "decode the feed's reference data first, or use `raw`",
            )
        return self.scale


def to_raw(value: Any, scale: int | None, what: str) -> int:
    """Return the wire integer of a price.

    `value` is an int (the wire integer itself), a `Price`, or a `Decimal`, float or text (scaled by
    10**`scale`). Raises `UsageError`, naming field `what`, where the value has more decimals than
    the scale, or no scale is known.
    """
    if isinstance(value, int):
        return value
    if isinstance(value, Price):
        if scale is None or value.scale is None or value.scale == scale:
            return value.raw
        value = value.decimal
    if scale is None:
        raise UsageError(f"{what}: no scale is known for {value}", "give the wire integer instead")
    exact = Decimal(str(value)).scaleb(scale)
    if exact != exact.to_integral_value():
        raise UsageError(
            f"{what}: {value} has more than {scale} decimals", "raise the scale code or round first"
        )
    return int(exact)
