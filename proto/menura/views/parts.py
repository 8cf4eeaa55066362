"""What is read of each part of a text: the rest of what the parser knows of a part would be dropped, and so is refused.

Comes in: sqlglot's tree. Goes out: nothing, or a `ViewRefused` with the place. NOT of a NOT LIKE, a collation of a type
or a condition of an aggregate are such things: what is compiled without them means something else. Kinds that are not
here are refused by who compiles them.
"""

from sqlglot import exp

from menura.views.parsing import refuse

_ONE = frozenset({"this"})
_TWO = frozenset({"this", "expression"})
_READ: dict[type[exp.Expression], frozenset[str]] = {
    **dict.fromkeys(
        (exp.Boolean, exp.Paren, exp.Neg, exp.Abs, exp.Not, exp.Length, exp.Year, exp.Month, exp.Day, exp.DayOfMonth,
         exp.Exists, exp.FirstValue, exp.LastValue, exp.Where, exp.Having, exp.From),
        _ONE,
    ),
    **dict.fromkeys(
        (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.Add, exp.Sub, exp.Mul, exp.And, exp.Or,
         exp.Is, exp.Nullif),
        _TWO,
    ),
    **dict.fromkeys((exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Coalesce), frozenset({"this", "expressions"})),
    **dict.fromkeys((exp.Cast, exp.TryCast), frozenset({"this", "to", "safe"})),
    **dict.fromkeys((exp.Lag, exp.Lead), frozenset({"this", "offset", "default"})),
    **dict.fromkeys((exp.Rank, exp.DenseRank, exp.Order), frozenset({"expressions"})),
    **dict.fromkeys((exp.Null, exp.RowNumber), frozenset()),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Column: frozenset({"this", "table", "db", "catalog"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.In: frozenset({"this", "expressions", "query", "unnest"}),
    exp.Between: frozenset({"this", "low", "high", "symmetric"}),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true"}),
    exp.Concat: frozenset({"expressions", "safe"}),
    exp.DPipe: frozenset({"this", "expression", "safe"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.DataType: frozenset({"this", "expressions"}),
    exp.TsOrDsToDate: frozenset({"this", "format", "safe"}),
    exp.Count: frozenset({"this", "expressions", "big_int"}),
    exp.Ordered: frozenset({"this", "desc", "nulls_first", "with_fill"}),
    exp.WindowSpec: frozenset({"kind", "start", "start_side", "end", "end_side", "exclude"}),
    exp.Join: frozenset({
        "this", "on", "side", "kind", "using", "method", "global", "global_", "hint", "match_condition",
    }),
}  # fmt: skip


#: Spark SQL has them on one level and reads them from the left; the parser has three levels of them
_COMPARISONS = (
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.In, exp.Between, exp.Like,
    exp.Is,
)  # fmt: skip
_OPERANDS = ("this", "expression", "low", "high")


def check_parts(tree: exp.Expression) -> None:
    """Raises `ViewRefused`."""
    for node in tree.find_all(exp.Expression):
        known = _READ.get(type(node))
        unread = [name for name, value in node.args.items() if value and known is not None and name not in known]
        if unread:
            refuse(
                f"{type(node).__name__} with {unread[0].upper().strip('_')} is not among what views can compute", node
            )
        if isinstance(node, _COMPARISONS):
            _check_operands(node)


def _check_operands(node: exp.Expression) -> None:
    """NOT is what the parser makes of NOT IN, NOT BETWEEN and IS NOT."""
    for operand in (node.args.get(name) for name in _OPERANDS):
        if isinstance(operand, (*_COMPARISONS, exp.Not)):
            refuse("a comparison is compared without parentheses", node, "Put parentheses around it")
    right = node.args.get("expression")
    is_equal = isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ)
    if is_equal and isinstance(right, exp.Paren) and isinstance(right.this, (*_COMPARISONS, exp.Not)):
        refuse(  # the parser has put these parentheses there, or the text has
            "a comparison is at the right of <=>", node, "Have it at the left, in parentheses, or in two pairs of them"
        )
