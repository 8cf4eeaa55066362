"""Tables with system versioning (SQL:2011): which of their rows are current, so that SELECT * shows them.

Such a table's log has each former version of a row as a row too: one column, GENERATED ALWAYS AS ROW END, holds until
when it was current. An update's rows are the current version's, and a former version is inserted beside it; a delete
is logged as an update that ends the row. A current row's column holds the greatest value of its type: an instant, of
which newer servers have a later one, or a number of transactions. It is the last column of the primary key, which
without it tells current rows apart.
"""

from typing import Final

#: the Arrow format strings that such a column has
ROW_END_FORMATS: Final = ("tsu:UTC", "L")
#: microseconds since the epoch: 2038-01-19 03:14:07.999999 and 2106-02-07 06:28:15.999999
CURRENT_US: Final = (2**31 * 10**6 - 1, 2**32 * 10**6 - 1)
#: of uint64, where a number of transactions ends a row
CURRENT_NUMBER: Final = 2**64 - 1
