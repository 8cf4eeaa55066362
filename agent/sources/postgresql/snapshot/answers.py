"""What an error of the server in the middle of a SELECT speaks of. Pure: a SQLSTATE in, its meaning out.

What neither passes nor is about the definition or a bound is taken to be about the rows. A wrong guess does no harm: a
chunk whose rows can't be read is read again in smaller parts, and only one row that can't be read alone ends its dump.
"""

from enum import Enum, auto

# SQLSTATEs, by the names of the server's errcodes.txt: classes have two signs.
_CLASSES_OF_A_MOMENT = frozenset(
    {
        "08",  # connection_exception
        "25",  # invalid_transaction_state
        "40",  # transaction_rollback; a standby ends what stands in the way of replay with 40001
        "53",  # insufficient_resources
        "55",  # object_not_in_prerequisite_state
        "57",  # operator_intervention
    }
)
_OF_A_MOMENT = frozenset({"42501", "58000", "58030"})  # insufficient_privilege, system_error, io_error
_CLASS_SYNTAX_OR_ACCESS = "42"
_OF_THE_DEFINITION = frozenset({"3F000", "0A000"})  # invalid_schema_name, a plan that is of the former columns
#: of a constant that the server's types don't take
_OF_A_BOUND = frozenset(
    {
        "22P02",  # invalid_text_representation
        "22003",  # numeric_value_out_of_range
        "22007",  # invalid_datetime_format
        "22008",  # datetime_field_overflow
        "22009",  # invalid_time_zone_displacement_value
    }
)


class Subject(Enum):
    #: the server, the connection or the user's rights, as they are now
    MOMENT = auto()
    #: the table is not as its definition was read
    DEFINITION = auto()
    #: only where no row has come
    BOUND = auto()
    ROWS = auto()


def subject_of(state: str) -> Subject:
    """
    >>> subject_of("57014"), subject_of("42703"), subject_of("XX001")
    (<Subject.MOMENT: 1>, <Subject.DEFINITION: 2>, <Subject.ROWS: 4>)
    """
    if state in _OF_A_MOMENT or state[:2] in _CLASSES_OF_A_MOMENT:
        return Subject.MOMENT
    if state in _OF_THE_DEFINITION or state.startswith(_CLASS_SYNTAX_OR_ACCESS):
        return Subject.DEFINITION
    return Subject.BOUND if state in _OF_A_BOUND else Subject.ROWS
