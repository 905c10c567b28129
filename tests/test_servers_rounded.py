"""A printed number holds whatever was printed so, and no more."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ref.servers import Rounded
from eagle3ref.servers.formats.fields import count, counts, figure, integer, rounded

VALUES = st.floats(0, 1e6, allow_nan=False)


@given(value=VALUES, decimals=st.integers(0, 6), percent=st.booleans())
def test_it_holds_the_number_that_was_printed(value: float, decimals: int, percent: bool) -> None:
    """An interval that leaves the truth out, for any number of decimals, per cent or not."""
    text = f"{100 * value:.{decimals}f}%" if percent else f"{value:.{decimals}f}"
    assert Rounded.printed(text).holds(value)


@given(units=st.integers(-(10**9), 10**9), decimals=st.integers(0, 12))
def test_its_ends_are_half_a_unit_away(units: int, decimals: int) -> None:
    """Ends that are off by a rounding of their own: each is the double nearest to the exact one."""
    text = f"{Decimal(units).scaleb(-decimals):f}"
    number, half = Fraction(units, 10**decimals), Fraction(1, 2 * 10**decimals)
    assert Rounded.printed(text) == Rounded(float(number), float(number - half), float(number + half))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.50", (2.5, 2.495, 2.505)),
        ("61.3%", (0.613, 0.6125, 0.6135)),
        ("100.0 %", (1.0, 0.9995, 1.0005)),
        ("1,234", (1234, 1233.5, 1234.5)),
        ("9.30e-05", (9.3e-5, 9.295e-5, 9.305e-5)),
        ("2E3", (2000, 1500, 2500)),
        ("-1.5", (-1.5, -1.55, -1.45)),
    ],
)
def test_known_texts(text: str, expected: tuple[float, float, float]) -> None:
    """A percentage as a hundredfold, a lost exponent, a separator read as a point."""
    number = Rounded.printed(text)
    assert (number.value, number.low, number.high) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        *("", "nan", "inf", "-inf", "abc", "1/2", "1/3", ".", "%", "2.5.1", "0x10", "1_000", "1._5", "٣", "２.5"),
        *("1e999999999", "1e" + "9" * 5000, "1" * 400, "9" * 200 + "e200", "1" * 5000, "1e400%", "5e-324"),
    ],
)
def test_what_is_no_number_is_refused(text: str) -> None:
    """A figure made up from noise, or minutes spent on an exponent."""
    with pytest.raises(ValueError, match=r".*"):
        Rounded.printed(text)
    assert rounded(text) is None


def test_numbers_of_text_and_json() -> None:
    """A decimal comma taken for thousands, a count with a fraction, a JSON float taken as exact."""
    assert rounded("2,50") == Rounded.printed("2.50")
    assert (integer("12,345"), integer("12.0"), integer("12.5")) == (12345, 12, None)
    assert figure(2.39) == Rounded.printed("2.39")
    assert figure(2) == figure(2.0) == Rounded.printed("2.00")
    assert figure(1.0638297872340425) == Rounded.printed("1.0638297872340425")
    assert figure(2.5e-05) == Rounded.printed("2.5e-05")
    assert (figure(10**400), figure(1e305), figure(1e-320), count(10**30)) == (None, None, None, None)
    assert counts({"0": 4, "2": 1}) == (4, 0, 1)
    assert counts({"0": 4, "1000000000000": 1}) == ()  # no histogram, and no list of so many zeros
    assert (figure(None), figure(True), figure(float("nan")), figure("2.5")) == (None, None, None, None)
