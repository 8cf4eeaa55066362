"""Lakes, and the views and search indexes over them."""

from collections.abc import Mapping, Sequence

from controlplane_api.errors.base import ControlPlaneError, RequestError


class LakeUnknown(RequestError):
    """No sink of this name has reported."""

    status = 404
    fix = "The list of lakes has all names."


class ViewUnknown(RequestError):
    """The tenant has no joined view of this name."""

    status = 404
    fix = "The list of views has all names."


class ViewExists(RequestError):
    """The tenant has a joined view of this name."""

    status = 409
    fix = "Change it, or take another name."


class ViewInUse(RequestError):
    """Another joined view reads this one, and could not go on."""

    status = 409
    fix = "Change or drop that one first."


class ViewsTooMany(RequestError):
    """There are as many joined views as there may be, or their texts are too long together."""

    status = 409
    fix = "Drop one that nobody reads."


class ViewRefused(RequestError):
    """The text of a joined view can't be read, names what is not there, or can't be followed change by change."""

    status = 422
    fix = "Correct the text where `errors` says: by line and column, from 1."
    line = 0
    column = 0

    @classmethod
    def at(cls, doing: str, found: str, line: int = 0, column: int = 0, remedy: str = "") -> "ViewRefused":
        """`line` and `column` from 1, which `found` says too; 0: it is of the whole text."""
        refused = cls(doing, found, data="Nothing was changed.", remedy=remedy)
        refused.line, refused.column = line, column
        return refused

    @property
    def complaints(self) -> Sequence[Mapping[str, object]]:
        return [{"detail": self.found, "pointer": "#/sql", "line": self.line, "column": self.column}]


class SearchMissing(RequestError):
    """The API was started without a search service."""

    status = 409
    fix = "Run `menura search serve`, and start the API with --search."


class SearchIndexUnknown(RequestError):
    """The table or view has no search index, or none that was completed."""

    status = 404
    fix = "Index it by `menura search index`; the list of search indexes has all that there are."


class RecentChangesUnknown(RequestError):
    """The search service has no lake in which the table has changes."""

    status = 404
    fix = "Start its sync and wait until a lake has rows of it; `menura search serve` names that lake with --lake."


class SearchRefused(RequestError):
    """The text, a filter or a facet of a search can't be answered as it is written, or not within its time."""

    status = 422
    fix = "Change what the problem names, or ask for less."


class SearchBusy(RequestError):
    """As many searches run as may at once: of the tenant, of this API, or at the search service."""

    status = 503
    terminal = False
    retry_after_seconds = 1
    fix = "Repeat it after the time that Retry-After says."


class SearchAway(RequestError):
    """The search service can't be reached, refuses the API's token, or says what can't be understood."""

    status = 503
    terminal = False
    retry_after_seconds = 5
    fix = "Repeat the request later; the operator finds the reason in the API's log."


class SearchUnusable(ControlPlaneError):
    """The address of the search service, or the files with which the API comes to it."""

    exit_code = 45
