"""Numbers as people read them, at the edges of their units."""

import pytest

from shardwright.ir.units import bytes_text, gap_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1024**2 - 1, "1024.00 KiB"),
        (1024**2, "1.00 MiB"),
        (1536 * 1024**3, "1.50 TiB"),
        (5000 * 1024**4, "5000.00 TiB"),
    ],
)
def test_bytes_have_the_largest_unit_that_is_no_more_than_they_are(nbytes, text):
    assert bytes_text(nbytes) == text


@pytest.mark.parametrize(
    ("gap", "text"), [(0.0, "0%"), (2e-6, "0.0002%"), (5e-5, "0.01%"), (0.5, "50.00%")]
)
def test_a_gap_above_zero_is_not_rounded_to_zero(gap, text):
    assert gap_text(gap) == text
