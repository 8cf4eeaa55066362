"""The average of exact sums, as Spark SQL rounds it, in the engine's text. Pure."""

from menura.types import decimal_digits
from menura.views.terms import type_word

#: that an average of decimals has behind the point beyond those of its values
AVERAGE_DIGITS = 4


def average(total: str, count: str, type_: str) -> str:
    """`total`: the exact sum as a decimal; `count`: of values, not 0; `type_`: of the average.

    Decimals are rounded half up behind the last digit, computed in whole numbers, which lose no digit: a sum is taken
    as the whole number of its smallest unit, by its text; so is what comes out.
    """
    digits = decimal_digits(type_)
    if digits is None:
        return f"CAST({total} AS DOUBLE) / {count}"
    units = f"CAST(replace(CAST(abs({total}) AS VARCHAR), '.', '') AS HUGEINT)"
    many = f"CAST({count} AS HUGEINT)"
    more = 10**AVERAGE_DIGITS
    found = f"({units} // {many} * {more} + ({units} % {many} * {2 * more} + {many}) // (2 * {many}))"
    text = f"lpad(CAST({found} AS VARCHAR), {digits[0] + 1}, '0')"
    sign = f"CASE WHEN {total} < 0 THEN '-' ELSE '' END"
    return f"CAST({sign} || left({text}, -{digits[1]}) || '.' || right({text}, {digits[1]}) AS {type_word(type_)})"
