"""Problems, as RFC 9457 has them."""

from pydantic import Field

from controlplane_api.api.views.base import View


class ProblemView(View):
    """A failure that an agent, the gateway or the cut log reported."""

    code: str
    message: str
    terminal: bool
    at_us: int


class ProblemType(View):
    """What a problem's `type` is the address of."""

    type: str
    code: str
    title: str
    status: int
    cause: str
    fix: str


class ProblemTypes(View):
    problems: list[ProblemType]


class InvalidView(View):
    """What is wrong with a request: in its body, or in a parameter."""

    detail: str
    #: a JSON pointer into the body, as a fragment
    pointer: str | None = None
    parameter: str | None = None
    #: path, query or header
    within: str | None = Field(default=None, alias="in")
    #: in the text that the pointer names, from 1; 0: it is of the whole text
    line: int | None = None
    column: int | None = None


class ProblemDocument(View):
    """An answer that is no success: RFC 9457."""

    #: an address of this API, with a page that says cause and fix
    type: str
    title: str
    status: int
    #: all of the below in one sentence
    detail: str
    code: str
    doing: str
    found: str
    #: what became of the data
    data: str | None = None
    #: what to do next, in this case
    remedy: str | None = None
    source: str | None = None
    database: str | None = None
    table: str | None = None
    position: str | None = None
    errors: list[InvalidView] | None = None
