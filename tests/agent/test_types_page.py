from menura.types import ARROW_TYPES, decimal_digits

from agent.sources.mysql.types import FORMS, arrow_format
from tests.types_page import PAGE, missing, page


def test_page_of_types_is_what_the_mapping_says() -> None:
    text = PAGE.read_text()

    assert not missing()
    assert page(text) == text, "run: python -m tests.types_page"


def test_forms_when_they_are_no_decimals_then_they_are_all_arrow_types_but_that_of_truth_values() -> None:
    formats = {arrow_format(type_) for form in FORMS for type_ in form.types}

    assert {format_ for format_ in formats if decimal_digits(format_) is None} == set(ARROW_TYPES) - {"b"}
