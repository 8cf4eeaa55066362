from tests.types_page import PAGE, missing, page


def test_page_of_types_is_what_the_mapping_says() -> None:
    text = PAGE.read_text()

    assert not missing()
    assert page(text) == text, "run: python -m tests.types_page"
