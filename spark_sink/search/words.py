"""What a word of a text is, in indexes and in searches: letters and digits, without case and accents.

Comes in: a text. Goes out: its words, in order. None has more than 255 bytes. Pure.
"""

from functools import cache

import tantivy


@cache
def analyzer() -> tantivy.TextAnalyzer:
    built = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for each in (tantivy.Filter.remove_long(256), tantivy.Filter.lowercase(), tantivy.Filter.ascii_fold()):
        built = built.filter(each)
    return built.build()


def words_of(text: str) -> list[str]:
    """
    >>> words_of("Žluťoučký e-mail")
    ['zlutoucky', 'e', 'mail']
    """
    return analyzer().analyze(text)
